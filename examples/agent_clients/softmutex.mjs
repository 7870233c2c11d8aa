#!/usr/bin/env node
// Runs a command, or a function, while the agent of this user holds a mutex. Nothing but Node.js is needed.
//
//   ./softmutex.mjs NAME SECONDS COMMAND [ARGUMENT ...]
//
//   import { acquire } from "./softmutex.mjs";
//   const hold = await acquire("nightly-ftp", { timeout: 600 });     // rejects with .code 75: not in time
//   hold.onLost = (reason) => { ... };
//   hold.release();
//
// The protocol: docs/reference/agent-protocol.md

import { spawn } from "node:child_process";
import { statSync } from "node:fs";
import net from "node:net";
import { basename } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

class Failed extends Error {
  constructor(code, why) {
    super(why);
    this.code = code;
  }
}

export function acquire(name, { timeout = null, purpose = basename(process.argv[1]), agent } = {}) {
  const path = agent ?? process.env.SOFTMUTEX_AGENT ?? `/tmp/softmutex-${process.getuid()}/agent.sock`;
  return new Promise((resolve, reject) => {
    try {
      if (statSync(path).uid !== process.getuid()) throw new Error("it is somebody else's");
    } catch (error) {
      reject(new Failed(69, `no agent at ${path}: ${error.message}`));
      return;
    }
    const link = net.createConnection(path);
    const tell = (is, values = {}) => link.write(JSON.stringify({ is, ...values }) + "\n");
    const hold = {
      name,
      lost: null, // the reason, as soon as others may hold it, too
      onLost: (_reason) => {},
      running: (group) => tell("running", { group }), // which the agent ends if this process is killed
      touch: () => tell("touch"),
      release: () => link.end(JSON.stringify({ is: "done" }) + "\n"),
    };
    const lose = (reason) => {
      if (hold.epoch === undefined || hold.lost !== null || link.writableEnded) return;
      hold.lost = reason;
      hold.onLost(reason);
    };
    link.on("error", (error) => reject(new Failed(69, error.message)));
    link.on("close", () => {
      lose("closed");
      reject(new Failed(69, "the agent hung up"));
    });
    createInterface({ input: link }).on("line", (line) => {
      const message = JSON.parse(line);
      if (message.is === "granted") tell("take", { turn: message.turn });
      else if (message.is === "go") resolve(Object.assign(hold, { epoch: message.epoch, hop: message.hop }));
      else if (message.is === "failed") reject(new Failed(message.code, message.why));
      else if (message.is === "elsewhere") reject(new Failed(69, message.why));
      else if (message.is === "lost") lose(message.reason);
    });
    tell("want", { version: 1, name, timeout, purpose });
  });
}

async function main([name, seconds, ...command]) {
  if (command.length === 0) throw new Failed(64, "usage: softmutex.mjs NAME SECONDS COMMAND [ARGUMENT ...]");
  const hold = await acquire(name, { timeout: Number(seconds), purpose: basename(command[0]) });
  const env = { ...process.env, SOFTMUTEX_HELD: name, SOFTMUTEX_EPOCH: String(hold.epoch) };
  const child = spawn(command[0], command.slice(1), { stdio: "inherit", detached: true, env });
  const end = () => process.kill(-child.pid, "SIGTERM");
  for (const signal of ["SIGTERM", "SIGINT", "SIGHUP"]) process.on(signal, end);
  hold.running(child.pid);
  hold.onLost = (reason) => {
    console.error(`softmutex: ${name} may be held by others, too: ${reason}`);
    if (process.env.ON_LOST === "term") end();
  };
  const code = await new Promise((resolve) => child.on("exit", (code, signal) => resolve(signal ? 143 : code)));
  hold.release();
  process.exitCode = code;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  main(process.argv.slice(2)).catch((error) => {
    console.error(`softmutex: ${error.message}`);
    process.exitCode = error.code ?? 69;
  });
}
