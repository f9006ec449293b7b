// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// TestSysctlReadOnly: a container runtime runs plugins with a read-only /proc/sys. Add succeeds if the value is already
// right. Otherwise the error names both values, and says what to do.
func TestSysctlReadOnly(t *testing.T) {
	n, _ := nltest.NS(t, "node")
	right, wrong := nl.Sysctl{Key: "net/ipv4/ip_forward", Value: "1"}, nl.Sysctl{Key: "net/ipv4/ip_forward", Value: "0"}
	veth := nl.Veth{Name: "veth7", Peer: "peer7", PeerNS: n, NoRA: true}
	if err := right.Add(n); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // without an unlock: the thread ends with its mounts
		for _, err := range []error{
			unix.Unshare(unix.CLONE_NEWNS),
			unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			unix.Mount("/proc/sys", "/proc/sys", "", unix.MS_BIND|unix.MS_REC, ""),
			unix.Mount("", "/proc/sys", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""),
			nl.Wiring{{NS: n, Object: right}}.Add(), right.Settable(n),
		} {
			if err != nil {
				t.Error(err)
			}
		}
		for what, err := range map[string]error{"Add": wrong.Add(n), "Settable": wrong.Settable(n),
			"Veth": veth.Add(n)} {
			if !errors.Is(err, nl.ErrReadOnly) || !errors.Is(err, unix.EROFS) ||
				!strings.Contains(err.Error(), `: the value is "1", and "0" is needed: `) {
				t.Errorf("%s: %v", what, err)
			}
		}
	}()
	<-done
	if err := errors.Join(wrong.Settable(n), wrong.Add(n), wrong.Settable(n)); err != nil {
		t.Error(err)
	}
}
