// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipvlan

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

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest/trace"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// TestStatusWithoutIPvlan: STATUS reports that no pod can start, and names the reason. The test replaces the kernel's
// answer by the answer of a kernel without ipvlan.
func TestStatusWithoutIPvlan(t *testing.T) {
	host, _ := nltest.NS(t, "host")
	tr := trace.Trace{Counts: func(c trace.Call) string {
		if c.Nr == unix.SYS_WRITE && strings.HasPrefix(c.File(0), "socket:") {
			return "question"
		}
		return ""
	}}
	if (nl.IPVlan{}).Supported(host) == nil {
		if runtime.GOARCH != "amd64" {
			t.Skip("this kernel has ipvlan, and this test cannot make a system call fail here")
		}
		tr.Kill, tr.Errno = 1, syscall.EOPNOTSUPP
	}
	var stdout bytes.Buffer
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "CNI_COMMAND=STATUS", "CNI_PATH=/opt/cni/bin")
	cmd.Stdin = strings.NewReader(`{"cniVersion": "1.1.0", "name": "net", "type": "cni-ipvlan-vpc-k8s-ipvlan"}`)
	cmd.Stdout = &stdout
	var status syscall.WaitStatus
	if err := host.Do(func() (err error) { status, err = tr.Run(cmd); return err }); err != nil {
		t.Fatal(err)
	}
	var e struct {
		Code         uint
		Msg, Details string
	}
	if err := json.Unmarshal(stdout.Bytes(), &e); err != nil || status.ExitStatus() != 1 {
		t.Fatalf("status %x, %v:\n%s", status, err, stdout.String())
	}
	if e.Code != plugin.CodeNotAvailable || !strings.HasPrefix(e.Msg, "this kernel has no ipvlan: ") ||
		!strings.Contains(e.Details, "CONFIG_IPVLAN") {
		t.Errorf("%+v", e)
	}
}
