// Runs a command while the agent of this user holds a mutex. Nothing but Go's own library is needed.
//
//	go run softmutex.go NAME SECONDS COMMAND [ARGUMENT ...]
//
// The protocol: docs/reference/agent-protocol.md
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
)

type message map[string]any

// Hold is the right to run, until Release. Lost gives a reason as soon as others may hold it, too.
type Hold struct {
	Epoch any
	Lost  chan any
	link  net.Conn
}

func (h *Hold) tell(m message) { _ = json.NewEncoder(h.link).Encode(m) }

// Release hands the mutex on.
func (h *Hold) Release() { h.tell(message{"is": "done"}); h.link.Close() }

// Acquire waits for at most so many seconds. The number is an exit code: 75 not in time, 69 no agent.
func Acquire(name, seconds, purpose string) (*Hold, int, error) {
	path := os.Getenv("SOFTMUTEX_AGENT")
	if path == "" {
		path = fmt.Sprintf("/tmp/softmutex-%d/agent.sock", os.Getuid())
	}
	if found, err := os.Stat(path); err != nil || int(found.Sys().(*syscall.Stat_t).Uid) != os.Getuid() {
		return nil, 69, fmt.Errorf("no agent of yours at %s", path)
	}
	link, err := net.Dial("unix", path)
	if err != nil {
		return nil, 69, err
	}
	hold, lines := &Hold{link: link, Lost: make(chan any, 2)}, json.NewDecoder(bufio.NewReader(link))
	limit := json.Number(seconds)
	hold.tell(message{"is": "want", "version": 1, "name": name, "timeout": limit, "purpose": purpose})
	for m := (message{}); lines.Decode(&m) == nil; m = (message{}) {
		switch m["is"] {
		case "granted":
			hold.tell(message{"is": "take", "turn": m["turn"]})
		case "go":
			hold.Epoch = m["epoch"]
			go hold.listen(lines)
			return hold, 0, nil
		case "failed":
			return nil, int(m["code"].(float64)), fmt.Errorf("%v", m["why"])
		case "elsewhere":
			return nil, 69, fmt.Errorf("%v", m["why"])
		}
	}
	return nil, 69, fmt.Errorf("the agent hung up")
}

func (h *Hold) listen(lines *json.Decoder) {
	for m := (message{}); lines.Decode(&m) == nil; m = (message{}) {
		if m["is"] == "lost" {
			h.Lost <- m["reason"]
		}
	}
	h.Lost <- "closed" // nobody hears of it after Release
}

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: softmutex NAME SECONDS COMMAND [ARGUMENT ...]")
		os.Exit(64)
	}
	name, argv := os.Args[1], os.Args[3:]
	hold, code, err := Acquire(name, os.Args[2], filepath.Base(argv[0]))
	command, signals := exec.Command(argv[0], argv[1:]...), make(chan os.Signal, 1)
	if err == nil {
		command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
		command.Env = append(os.Environ(), "SOFTMUTEX_HELD="+name, fmt.Sprint("SOFTMUTEX_EPOCH=", hold.Epoch))
		command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // the agent ends this group if we are killed
		code, err = 127, command.Start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "softmutex:", err)
		os.Exit(code)
	}
	hold.tell(message{"is": "running", "group": command.Process.Pid})
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	go func() {
		for {
			select {
			case reason := <-hold.Lost:
				fmt.Fprintln(os.Stderr, "softmutex:", name, "may be held by others, too:", reason)
				if os.Getenv("ON_LOST") != "term" {
					continue
				}
			case <-signals:
			}
			_ = syscall.Kill(-command.Process.Pid, syscall.SIGTERM)
		}
	}()
	_ = command.Wait()
	hold.Release()
	if status := command.ProcessState.Sys().(syscall.WaitStatus); status.Signaled() {
		os.Exit(128 + int(status.Signal()))
	}
	os.Exit(command.ProcessState.ExitCode())
}
