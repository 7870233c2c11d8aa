# Nomad: prohibit_overlap ends at one job of one cluster; this is across jobs, clusters and crontabs.
# On each client: softmutex agent --system, so that tasks need neither a key nor a port.
job "mirror" {
  type = "batch"

  periodic {
    crons            = ["0 2 * * *"]
    prohibit_overlap = true
  }

  group "mirror" {
    # 75 says that no turn came in time: Nomad tries again here, minutes later, and at last elsewhere.
    restart {
      attempts = 20
      interval = "12h"
      delay    = "5m"
      mode     = "fail"
    }

    task "transfer" {
      driver = "raw_exec"
      user   = "mirror"

      # To softmutex, which passes it on to the whole transfer, and hands the mutex on when that has ended. The client's
      # max_kill_timeout (30s where not set) must allow it.
      kill_signal  = "SIGTERM"
      kill_timeout = "60s"

      config {
        command = "/usr/local/bin/softmutex"
        args    = ["run", "-n", "nightly-ftp", "--slots", "2", "--timeout", "2h", "--", "/usr/local/bin/mirror"]
      }
    }
  }
}
