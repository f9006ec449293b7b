// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// check runs CHECK of the ipam plugin with the result of the running pod. The arguments are the ID of a container and
// the path of a namespace. check reports whether CHECK succeeds.
func (r *running) check(container, netns string) bool {
	r.Helper()
	conf := maps.Clone(r.conf)
	conf["prevResult"] = r.result
	stdin, err := json.Marshal(conf)
	must(r, err)
	cmd := r.command(program)
	cmd.Env = append(cmd.Env, "CNI_COMMAND=CHECK", "CNI_PATH="+filepath.Dir(cmd.Path), "CNI_CONTAINERID="+container,
		"CNI_IFNAME=eth0", "CNI_NETNS="+netns)
	cmd.Stdin = bytes.NewReader(stdin)
	r.start(cmd)
	err = cmd.Wait()
	r.Logf("CHECK of %s in %s: %s", container, netns, cmd.Stdout)
	return err == nil
}

// TestProcessCheckRebuilt: after a loss of the registry, CHECK of a running pod succeeds, because the kernel shows the
// pod's address.
func TestProcessCheckRebuilt(t *testing.T) {
	nltest.Need(t, "nftables")
	for how, lose := range losses {
		t.Run(how, func(t *testing.T) {
			r := runPod(newNode(t, "c5.large", ec2sim.Config{}, nil))
			_, another := nltest.NS(t, "another")
			var result types100.Result
			must(t, json.Unmarshal(r.result, &result))
			a, _ := plugin.Addr(result.IPs[0].Address.IP)
			whole := func(when string) {
				t.Helper()
				if !r.check("web", r.path) {
					t.Errorf("%s: the pod does not pass CHECK", when)
				}
				if when != "at first" && r.check("web", another) {
					t.Errorf("%s: CHECK passes in a namespace without the address", when)
				}
			}
			whole("at first")
			lose(r)
			whole("no process has rebuilt the registry")
			r.collect()
			whole("rebuilt")
			r.add("other")
			if r.pods["other"] == a {
				t.Errorf("another pod gets %s, which a running pod has", a)
			}
			whole("another pod has come")
			r.call(program, "DEL", r.conf) // comes too early: the pod still has the address
			whole("a DEL has come too early")

			r.Edit(func(s *registry.State) {
				for a, l := range s.Leases.All() {
					if l.Key == (registry.Key{}) {
						l.Key = podKey("thief")
						s.Leases.Set(a, l)
					}
				}
			})
			if r.check("web", r.path) {
				t.Error("CHECK passes although the registry gives the address to another pod")
			}
		})
	}
}

// TestProcessCheckUnread: the namespace of the pod could not be read when the registry was rebuilt, so the pod's
// address has no lease. CHECK succeeds as long as the address is not free.
func TestProcessCheckUnread(t *testing.T) {
	nltest.Need(t, "nftables")
	r := runPod(newNode(t, "c5.large", ec2sim.Config{}, nil))
	losses["deleted"](r)
	r.collect()
	var a netip.Addr
	r.Edit(func(s *registry.State) {
		for found := range s.Leases.Keys() {
			a = found
		}
		s.Leases.Delete(a)
	})
	if !r.check("web", r.path) {
		t.Error("the pod does not pass CHECK")
	}
	must(t, r.Registry().Change(t.Context(), func(s *registry.State) { // as for an address in an unknown prefix
		id, e := s.ENIOf(a)
		e.Addrs = slices.DeleteFunc(e.Addrs, func(has netip.Addr) bool { return has == a })
		s.ENIs[id] = e
	}))
	if !r.check("web", r.path) {
		t.Error("the pod does not pass CHECK, and its address is in a prefix")
	}
	r.Edit(func(s *registry.State) { s.Free.Set(a, time.Now()) })
	if r.check("web", r.path) {
		t.Error("CHECK passes although the address is free")
	}
}
