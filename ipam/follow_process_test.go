// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/nic"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// TestFollowProcess: another node has the address for which a pod asks. The process of the pod's ADD waits, and
// executes GrowProgram again and again. Meanwhile, another ADD of the node succeeds.
func TestFollowProcess(t *testing.T) {
	n := newNode(t, "m5.large", ec2sim.Config{}, nil)
	other, err := n.EC2.RunInstance(ec2sim.RunInstance{Type: "m5.large", Subnet: "subnet-pod",
		ENITags: map[string]string{book.TagManaged: "true"}})
	must(t, err)
	eni := other.ENIs()[0].ID
	n.Operate("AssignPrivateIpAddresses", "NetworkInterfaceId", eni, "PrivateIpAddress.1", "100.113.9.9")
	n.conf["requests"] = []any{map[string]any{"namespaces": []string{"*"}, "ips": true}}
	n.add("first") // so that the node has an ENI
	asks := map[string]any{"runtimeConfig": map[string]any{"io.kubernetes.cri.pod-annotations": map[string]string{
		nic.Annotation: `[{"ip": "100.113.9.9"}]`}}}
	waits := n.cni("ADD", "waits", asks)
	waits.Env = append(waits.Env, "CNI_ARGS=K8S_POD_NAMESPACE=db;K8S_POD_NAME=db-0")
	n.start(waits)
	time.Sleep(2 * time.Second)
	began := time.Now()
	n.add("meanwhile")
	if d := time.Since(began); d > 10*time.Second {
		t.Errorf("another ADD has waited for %v", d)
	}
	n.Operate("UnassignPrivateIpAddresses", "NetworkInterfaceId", eni, "PrivateIpAddress.1", "100.113.9.9")
	if err := waits.Wait(); err != nil || !strings.Contains(waits.Stdout.(*bytes.Buffer).String(), "100.113.9.9/") {
		t.Errorf("the ADD has answered %v: %s%s", err, waits.Stdout, waits.Stderr)
	}

	late := n.cni("ADD", "late", map[string]any{"addTimeout": 10, "runtimeConfig": map[string]any{
		"io.kubernetes.cri.pod-annotations": map[string]string{nic.Annotation: `[{"ip": "100.113.9.10"}]`}}})
	late.Env = append(late.Env, "CNI_ARGS=K8S_POD_NAMESPACE=db;K8S_POD_NAME=db-1")
	n.Operate("AssignPrivateIpAddresses", "NetworkInterfaceId", eni, "PrivateIpAddress.1", "100.113.9.10")
	n.start(late)
	answer := late.Stdout.(*bytes.Buffer)
	if err := late.Wait(); err == nil || !strings.Contains(answer.String(), `"code": 11`) ||
		!strings.Contains(answer.String(), "terminate its instance") {
		t.Errorf("the ADD that has no more time has answered %v: %s", err, answer)
	}
}
