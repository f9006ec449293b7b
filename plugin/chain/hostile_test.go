// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package chain

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// TestPranks: a pod changes its own links. DEL nevertheless frees the pod's address, and leaves nothing on the node.
// Another pod does not change.
func TestPranks(t *testing.T) {
	n := newNode(t)
	other, path := nltest.NS(t, "other")
	victim := n.request(path, "")
	victim.ContainerID = "other"
	result, err := n.ADD(victim)
	n.must(err)
	before := nltest.Dump(t, n.ns, other)
	for _, prank := range []string{
		"ip link set lo group $group",
		"ip link set eth0 group 0; ip link set lo group $group",
		"for l in lo eth0 eth1; do ip link set $l group $theirs; done",
		"ip link set eth0 down; ip link set eth0 name there group 0; ip link add eth0 group $group type bridge; ip " +
			"link set lo group $group",
		"for i in $(seq 1000); do echo link property add dev eth0 altname $(printf %0127d $i); done | ip -force " +
			"-batch - 2>/dev/null || true",
		"ip link del eth1; ip link del eth0",
	} {
		pod, path := nltest.NS(t, "pod")
		r := n.request(path, "")
		n.must(n.again(r))
		n.must(pod.Do(func() error {
			return exec.Command("sh", "-ec", fmt.Sprintf("group=%d theirs=%d; %s", nl.PodGroup(r.Digest()),
				nl.PodGroup(victim.Digest()), prank)).Run()
		}))
		for range 2 {
			n.must(n.DEL(r))
		}
		nltest.Remove(t, path)
		n.same(prank, before, nltest.Dump(t, n.ns, other))
	}
	n.must(n.CHECK(victim, result))
	n.must(n.DEL(victim))
	n.vacant()
}

// again repeats an ADD, as a runtime does. The namespace of a deleted pod may still have the address that an ADD takes.
// Then this ADD fails, and the next ADD takes another address.
func (n node) again(r *plugin.Request[Config]) (err error) {
	for range 4 { // one try for each address
		_, err = n.ADD(r)
		if e, ok := errors.AsType[*plugin.Error](err); !ok || e.Code != plugin.CodeTryAgain {
			return err
		}
	}
	return err
}

// TestReusedPath: the path of a deleted pod leads to the namespace of another pod, or of the node. DEL of the deleted
// pod changes nothing there.
func TestReusedPath(t *testing.T) {
	n := newNode(t)
	_, path1 := nltest.NS(t, "pod1")
	pod2, path2 := nltest.NS(t, "pod2")
	gone, heir := n.request(path1, ""), n.request(path2, "")
	heir.ContainerID = "pod2"
	result, err := n.ADD(heir)
	n.must(err)
	before := nltest.Dump(t, n.ns, pod2)
	_, err = n.ADD(gone)
	n.must(err)
	nltest.Remove(t, path1)
	for _, path := range []string{path2, "/proc/thread-self/ns/net"} {
		gone.NetNS = path
		n.must(n.DEL(gone))
		n.same("DEL with "+path, before, nltest.Dump(t, n.ns, pod2))
	}
	n.must(n.CHECK(heir, result))
	n.must(n.DEL(heir))
	n.vacant()
}

// TestNodesNamespace: a path under /proc leads to the node's namespace. ADD and CHECK fail, and no address is leased.
func TestNodesNamespace(t *testing.T) {
	n := newNode(t)
	r := n.request("/proc/thread-self/ns/net", "")
	before := nltest.Dump(t, n.ns)
	_, err := n.ADD(r)
	for verb, err := range map[string]error{"ADD": err, "CHECK": n.CHECK(r, &types100.Result{})} {
		if e, ok := errors.AsType[*plugin.Error](err); !ok || e.Code != types.ErrInvalidNetNS ||
			!strings.Contains(err.Error(), r.NetNS) {
			t.Errorf("%s in the namespace of the node: %v", verb, err)
		}
	}
	n.same("ADD and CHECK", before, nltest.Dump(t, n.ns))
	n.vacant()
}
