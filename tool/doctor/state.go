// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
)

// checkState checks the file and the directory of the registry.
func (p *Node) checkState(context.Context) ([]Finding, error) {
	dir := registry.Dir()
	var found []Finding
	var f unix.Statfs_t
	if err := unix.Statfs(dir, &f); err != nil {
		return nil, err
	}
	if f.Type != unix.TMPFS_MAGIC {
		found = append(found, Finding{Severity: warning, About: dir,
			Means: "this directory is not on a tmpfs. After a boot, the registry still has the pods from before the " +
				"boot, and each ADD waits for a disk",
			Do: "mount /run as tmpfs, and do not set CNI_IPVLAN_VPC_STATE_DIR"})
	}
	if _, err := p.pool.Registry.View(); err != nil {
		found = append(found, Finding{Severity: severe, About: dir, Means: "the registry cannot be read: " +
			err.Error(),
			Do: cmp.Or(cli.Unreadable(err), "run dmesg to see whether the disk or the mount fails")})
	}
	bad, _ := filepath.Glob(filepath.Join(dir, "*.bad-*"))
	for _, b := range bad {
		found = append(found, Finding{Severity: note, About: b,
			Means: "a process could not parse this old file of the registry, and has built a new registry",
			Do:    "report a bug, attach the file, then delete the file"})
	}
	return slices.Concat(found, p.checkLock(), p.checkLog()), nil
}

// checkLock looks for a stopped or hanging process that keeps the lock of the registry. It looks several times within a
// second. If the same process holds the lock each time, this process is the finding. A change of the registry takes
// only milliseconds.
func (p *Node) checkLock() []Finding {
	const looks, between = 5, 200 * time.Millisecond
	first, held := p.pool.Registry.Holder()
	for range looks {
		if !held {
			return nil
		}
		time.Sleep(between)
		var h registry.Holder
		if h, held = p.pool.Registry.Holder(); h.PID != first.PID {
			return nil
		}
	}
	return []Finding{{Severity: severe, About: registry.Dir(),
		Means: "a process keeps the lock of the registry, so each ADD and each DEL waits for the lock, and then " +
			"fails. The " +
			first.String(),
		Do: fmt.Sprintf("run ps -fp %d to see what the process does. A change of the registry takes milliseconds, so "+
			"you may end the process. No address is lost", first.PID)}}
}

// checkLog looks for lines of the lease log that wait in the registry. It looks twice, because another process may be
// about to write these lines.
func (p *Node) checkLog() []Finding {
	if p.state.Unwritten() == 0 {
		return nil
	}
	time.Sleep(100 * time.Millisecond)
	s, err := p.pool.Registry.View()
	if err != nil || s.Unwritten() == 0 {
		return nil
	}
	why := "its disk may be full"
	if f, err := os.OpenFile(s.Log.File, os.O_WRONLY|os.O_APPEND, 0); err != nil {
		why = err.Error()
	} else {
		f.Close()
	}
	return []Finding{{Severity: warning, About: s.Log.File,
		Means: fmt.Sprintf("the registry keeps %s of the lease log, because no process can write to this file (%s). "+
			"cni-tool whois does not see the lines in the registry", cli.Count(s.Unwritten(), "line"), why),
		Do: "make the file writable for root: df and mount show whether its disk is full or read-only. The next ADD, " +
			"DEL or registry-gc then writes the lines. The registry keeps at most the newest 256 lines"}}
}
