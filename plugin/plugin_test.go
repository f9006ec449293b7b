// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package plugin_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// config is the configuration of echo, a plugin that answers with its request.
type config struct {
	Address netip.Prefix `json:"address"`
	Fail    string       `json:"fail"`
}

func (c *config) Validate() error {
	var err error
	if !c.Address.IsValid() {
		err = errors.Join(err, errors.New("address: missing"))
	}
	if c.Fail == "twice" {
		err = errors.Join(err, errors.New(`fail: "twice" is not a way to fail`))
	}
	return err
}

func add(_ context.Context, r *plugin.Request[config]) (*types100.Result, error) {
	switch r.Config.Fail {
	case "panic":
		panic("on purpose")
	case "plain":
		return nil, errors.New("plain error")
	case "full":
		return nil, fmt.Errorf("acquire: %w", plugin.Errorf(plugin.CodeTryAgain, "add a subnet", "no address free"))
	case "late":
		return nil, fmt.Errorf("lock registry: %w", context.DeadlineExceeded)
	}
	ip := net.IPNet{IP: r.Config.Address.Addr().AsSlice(), Mask: net.CIDRMask(r.Config.Address.Bits(),
		r.Config.Address.Addr().BitLen())}
	result := &types100.Result{
		Interfaces: []*types100.Interface{{Name: r.IfName, Mac: "02:00:00:00:00:01", Mtu: 9001, Sandbox: r.NetNS}},
		IPs:        []*types100.IPConfig{{Address: ip, Interface: new(0)}},
	}
	result.DNS.Search = []string{r.Network, r.ContainerID, r.Pod.String(), r.Pod.UID}
	if r.Prev != nil {
		result.IPs = append(result.IPs, r.Prev.IPs...)
	}
	return result, nil
}

func del(_ context.Context, r *plugin.Request[config]) error {
	if r.Config.Fail == "absent" {
		return errors.New("link veth1: not found")
	}
	return nil
}

func gc(_ context.Context, r *plugin.Request[config]) error {
	return fmt.Errorf("%d valid: %v", len(r.Valid), r.Valid)
}

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"echo":  func() { plugin.Main("echo", plugin.Commands[config]{Add: add, Del: del, GC: gc}) },
		"relay": func() { plugin.Main("relay", plugin.Commands[config]{Add: relay}) },
	})
}

func TestScript(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		UpdateScripts:       os.Getenv("UPDATE") != "",
		Setup: func(e *testscript.Env) error {
			e.Setenv("CNI_CONTAINERID", "c1")
			e.Setenv("CNI_NETNS", "/run/netns/none")
			e.Setenv("CNI_IFNAME", "eth0")
			e.Setenv("CNI_PATH", "/opt/cni/bin")
			relay, err := exec.LookPath("relay")
			e.Setenv("RELAY_DIR", filepath.Dir(relay))
			return err
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"orphan": orphan},
	})
}
