#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# github.com/gofrs/flock v0.13.2: RLock of a Flock that holds the exclusive lock, and Lock after it.
#
# A good guess: as with sync.RWMutex, one object has one state. RLock of a locked object is an error, or returns at once and leaves the lock
# exclusive. Or RLock is a downgrade: afterwards, Locked is false and RLocked is true. Lock returns only with the exclusive lock.
#
# What happens: RLock makes the kernel's lock a shared lock. But Locked is still true, and RLocked is true, too. Another process now gets
# the shared lock. If the first process calls Lock to get the exclusive lock again, Lock trusts Locked. It returns nil without asking the
# kernel, even while the other process holds its shared lock. TryLock reports true. So each of two processes assumes that its lock excludes
# writes or reads of the other process. Only Unlock ends this state. The script needs Go.
set -euo pipefail

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
printf 'module example.com/lock\n\ngo 1.26\n\nrequire github.com/gofrs/flock v0.13.2\n' >go.mod
cat >main.go <<'EOF'
package main

import (
	"fmt"
	"os"
	"os/exec"

	"github.com/gofrs/flock"
)

func main() {
	l := flock.New("lock")
	if len(os.Args) > 1 { // the other process
		shared, err := l.TryRLock()
		fmt.Println("  other process: shared", shared, err)
		return
	}
	step := func(name string, err error) {
		fmt.Println(name, err, "Locked", l.Locked(), "RLocked", l.RLocked())
		other := exec.Command("./probe", "other")
		other.Stdout = os.Stdout
		_ = other.Run()
	}
	step("Lock", l.Lock())
	step("RLock", l.RLock())
	step("Lock", l.Lock())
	locked, err := l.TryLock()
	step(fmt.Sprint("TryLock ", locked), err)
	_ = l.Unlock()
	step("Unlock, Lock", l.Lock())
}
EOF
go mod tidy >/dev/null 2>&1 && go list -m github.com/gofrs/flock
go build -o probe . && ./probe | tee seen
diff - seen <<'EOF'
Lock <nil> Locked true RLocked false
  other process: shared false <nil>
RLock <nil> Locked true RLocked true
  other process: shared true <nil>
Lock <nil> Locked true RLocked true
  other process: shared true <nil>
TryLock true <nil> Locked true RLocked true
  other process: shared true <nil>
Unlock, Lock <nil> Locked true RLocked false
  other process: shared false <nil>
EOF
