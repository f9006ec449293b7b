// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"maps"
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

// TestStatusLacks: the kernel lacks a feature that every ADD needs. STATUS must report that no pod can start, and name
// the reason. The test replaces answers of the kernel.
func TestStatusLacks(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("this test cannot make a system call fail here")
	}
	f := newFabric(t)
	for _, c := range []struct {
		host, loop string
		fails      func(trace.Call) bool
		nth        int
		errno      syscall.Errno
		msg, hint  string
	}{
		{"ens5", "", nil, 0, 0, "hostInterface: link ens5: no such device", "see 'ip route show default'"},
		{"eth0", "", checkNetfilter, 1, syscall.EINVAL, "this kernel has no nftables: ", "CONFIG_NF_TABLES"},
		{"eth0", "", checkNetfilter, 2, syscall.ENOENT, noModule, "modules-load.d(5)"},
		{"eth0", "masquerade", checkNetfilter, 3, syscall.EOPNOTSUPP,
			"this kernel lacks a part of nftables (one of the modules nft_chain_nat, nft_masq): operation not " +
				"supported",
			"modules-load.d(5)"},
		{"eth0", "redirect", bpf, 1, syscall.ENOSYS, `serviceLoop "redirect": `, "Linux 5.10"},
	} {
		e := f.asks(map[string]any{"hostInterface": c.host, "serviceLoop": c.loop}, c.fails, c.nth, c.errno)
		if e == nil || e.Code != plugin.CodeNotAvailable || !strings.HasPrefix(e.Msg, c.msg) ||
			!strings.Contains(e.Details, c.hint) {
			t.Errorf("%+v, want %s", e, c.msg)
		}
	}
}

// noModule is the error on a node whose kernel lacks a module that the table needs.
const noModule = "this kernel lacks a part of nftables (one of the modules nft_chain_nat, nft_nat, nft_masq, nft_ct, " +
	"nft_fib_inet, nft_counter until Linux 5.16): no such file or directory"

// TestStatusOfBusyKernel: a system call fails for another reason, for example because memory is short. STATUS must not
// report that a feature is missing.
func TestStatusOfBusyKernel(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("this test cannot make a system call fail here")
	}
	f := newFabric(t)
	for _, errno := range []syscall.Errno{syscall.ENOBUFS, syscall.ENOMEM, syscall.EAGAIN} {
		if e := f.asks(map[string]any{"hostInterface": "eth0"}, checkNetfilter, 1, errno, hurried+"=yes"); e != nil {
			t.Errorf("%v: %+v", errno, e)
		}
	}
}

// TestStatusKnows: an ADD of this release has made the table, so STATUS does not try to make one.
func TestStatusKnows(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("this test cannot make a system call fail here")
	}
	f, _ := preparedTable(t)
	if e := f.asks(nil, checkNetfilter, 1, syscall.ENOENT); e != nil {
		t.Errorf("got %+v", e)
	}
	unshares := func(c trace.Call) bool { return c.Nr == unix.SYS_UNSHARE }
	if e := f.asks(nil, unshares, 1, syscall.EPERM); e != nil {
		t.Errorf("got %+v", e)
	}
	older := nl.Table{Family: "inet", Name: "cni_ipvlan_vpc_k8s_net",
		Chains: []nl.Chain{{Name: "forward", Type: "filter", Hook: "forward", Rules: []nl.NFRule{{nl.Count()}}}}}
	f.add(f.node, older)
	if e := f.asks(nil, checkNetfilter, 2, syscall.ENOENT); e == nil || e.Msg != noModule {
		t.Errorf("with another table: %+v", e)
	}
	f.bare()
	if e := f.asks(nil, unshares, 1, syscall.EPERM); e != nil {
		t.Errorf("where it cannot be tried: %+v", e)
	}
	if e := f.asks(nil, checkNetfilter, 2, syscall.ENOENT); e == nil || e.Msg != noModule {
		t.Errorf("without the table: %+v", e)
	}
	if e := f.asks(nil, nil, 0, 0); e != nil {
		t.Errorf("without the table: %+v", e)
	}
	if tables := nltest.Hooked(t, f.node); len(tables) > 0 {
		t.Errorf("STATUS has made %v", tables)
	}
}

// TestStatusKnowsRouted is TestStatusKnows with the table of routed pods, which differs from that of nodes without
// ipMasq.
func TestStatusKnowsRouted(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("this test cannot make a system call fail here")
	}
	f, _ := routedAgain(t)
	if e := f.asks(nil, checkNetfilter, 1, syscall.ENOENT); e != nil {
		t.Errorf("got %+v", e)
	}
	if e := f.asks(map[string]any{"ipMasq": false}, checkNetfilter, 1, syscall.ENOENT); e == nil {
		t.Error("without ipMasq STATUS has not asked")
	}
}

// TestAddLacks: the kernel lacks a feature that every ADD needs. ADD reports the same error as STATUS, and leaves
// nothing.
func TestAddLacks(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("this test cannot make a system call fail here")
	}
	f, p := preparedTable(t)
	f.bare()
	r := &p.request
	r.Prev.CNIVersion = "1.1.0"
	before := nltest.Dump(t, f.node, p.NS)
	e := f.asks(map[string]any{"prevResult": r.Prev}, checkNetfilter, 1, syscall.ENOENT,
		"CNI_CONTAINERID="+r.ContainerID, "CNI_IFNAME="+r.IfName, "CNI_NETNS="+r.NetNS, "CNI_COMMAND=ADD")
	if e == nil || e.Code != plugin.CodeNotAvailable || !strings.HasSuffix(e.Msg, noModule) ||
		!strings.Contains(e.Details, "modules-load.d(5)") {
		t.Errorf("%+v, want %s", e, noModule)
	}
	same(t, "ADD", before, nltest.Dump(t, f.node, p.NS))
}

// A failure is the error that a plugin prints.
type failure struct {
	Code         uint
	Msg, Details string
}

// asks starts the plugin as a process, with the given keys in its configuration. The CNI command is STATUS, except if
// env sets another. The nth system call that kind selects fails with errno, and has no effect.
func (f *fabric) asks(
	keys map[string]any, kind func(trace.Call) bool, nth int, errno syscall.Errno, env ...string,
) *failure {
	f.t.Helper()
	tr := trace.Trace{Counts: func(call trace.Call) string {
		if kind != nil && kind(call) {
			return "call"
		}
		return ""
	}, Every: true, Kill: nth, Errno: errno}
	conf := map[string]any{"cniVersion": "1.1.0", "name": "net", "type": "cni-ipvlan-vpc-k8s-unnumbered-ptp",
		"hostInterface": "eth0", "containerInterface": "eth1", "ipMasq": true}
	maps.Copy(conf, keys)
	stdin, err := json.Marshal(conf)
	must(f.t, err)
	var stdout bytes.Buffer
	cmd := exec.Command(os.Args[0])
	// If the environment has a name twice, the plugin gets the first value of this name.
	cmd.Env = append(append(os.Environ(), env...), "CNI_COMMAND=STATUS", "CNI_PATH=/opt/cni/bin")
	cmd.Stdin, cmd.Stdout = bytes.NewReader(stdin), &stdout
	var status syscall.WaitStatus
	must(f.t, f.node.Do(func() (err error) { status, err = tr.Run(cmd); return err }))
	if status.Exited() && status.ExitStatus() == 0 {
		return nil
	}
	var e failure
	if err := json.Unmarshal(stdout.Bytes(), &e); err != nil || status.ExitStatus() != 1 {
		f.t.Fatalf("status %x, %v:\n%s", status, err, stdout.String())
	}
	return &e
}

// checkNetfilter selects netlink messages that list the tables, or that begin a batch.
func checkNetfilter(c trace.Call) bool {
	if c.Nr != unix.SYS_WRITE || !strings.HasPrefix(c.File(0), "socket:") {
		return false
	}
	b, err := c.Bytes(uintptr(c.Args[1]), unix.SizeofNlMsghdr)
	if err != nil {
		return false
	}
	typ, flags := binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint16(b[6:])
	lists := typ == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETTABLE && flags&unix.NLM_F_DUMP == unix.NLM_F_DUMP
	// RTM_NEWLINK has the same number as the begin of a batch, but another length.
	begins := typ == unix.NFNL_MSG_BATCH_BEGIN && binary.NativeEndian.Uint32(b) == unix.SizeofNlMsghdr+4
	return lists || begins
}

func bpf(c trace.Call) bool { return c.Nr == unix.SYS_BPF }
