// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest/trace"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// TestStatusLacks has STATUS say, of each thing that no ADD can do without, that no pod
// can start, and why. A kernel that has it is made to answer as one that has not.
func TestStatusLacks(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("nobody knows how to have a system call fail here")
	}
	f := newFabric(t)
	for _, c := range []struct {
		host, loop string
		fails      func(trace.Call) bool
		errno      syscall.Errno
		msg, hint  string
	}{
		{"ens5", "", nil, 0, "hostInterface: link ens5: no such device", "see 'ip link'"},
		{"eth0", "", netfilter, syscall.EINVAL, "this kernel has no nftables: ", "CONFIG_NF_TABLES"},
		{"eth0", "redirect", bpf, syscall.ENOSYS, `serviceLoop "redirect": `, "Linux 5.10"},
	} {
		tr := trace.Trace{Counts: func(call trace.Call) string {
			if c.fails != nil && c.fails(call) {
				return c.msg
			}
			return ""
		}, Every: true, Errno: c.errno}
		if c.errno != 0 {
			tr.Kill = 1
		}
		var stdout bytes.Buffer
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "CNI_COMMAND=STATUS", "CNI_PATH=/opt/cni/bin")
		conf := map[string]any{"cniVersion": "1.1.0", "name": "net", "type": "cni-ipvlan-vpc-k8s-unnumbered-ptp",
			"hostInterface": c.host, "containerInterface": "eth1", "ipMasq": true, "serviceLoop": c.loop}
		stdin, err := json.Marshal(conf)
		must(t, err)
		cmd.Stdin, cmd.Stdout = bytes.NewReader(stdin), &stdout
		var status syscall.WaitStatus
		must(t, f.node.Do(func() (err error) { status, err = tr.Run(cmd); return err }))
		var e struct {
			Code         uint
			Msg, Details string
		}
		if err := json.Unmarshal(stdout.Bytes(), &e); err != nil || status.ExitStatus() != 1 {
			t.Fatalf("%s: status %x, %v:\n%s", c.msg, status, err, stdout.String())
		}
		if e.Code != plugin.CodeNotAvailable || !strings.HasPrefix(e.Msg, c.msg) || !strings.Contains(e.Details, c.hint) {
			t.Errorf("%+v, want %s", e, c.msg)
		}
	}
}

// netfilter asks for tables. It is the only question that is sent so.
func netfilter(c trace.Call) bool { return c.Nr == unix.SYS_SENDMSG }

func bpf(c trace.Call) bool { return c.Nr == unix.SYS_BPF }
