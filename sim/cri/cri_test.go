// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cri_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

// An object is a message of the Container Runtime Interface in JSON.
type object = map[string]any

// call calls a method of the runtime, and decodes the answer, unless answer is nil. If the runtime has just been
// started, call waits.
func (s *server) call(method string, request object, answer any) error {
	cmd := exec.Command(filepath.Join(s.programs, "cri"), s.path("socket"), method, string(must(json.Marshal(request))))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", method, err, strings.TrimSpace(stderr.String()))
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(out, answer)
}

func (s *server) sandboxes(t *testing.T) (ids []string) {
	var answer struct{ Items []struct{ ID string } }
	if err := s.call("ListPodSandbox", object{}, &answer); err != nil {
		t.Error(err)
	}
	for _, s := range answer.Items {
		ids = append(ids, s.ID)
	}
	return ids
}

// cgroup is the directory of the cgroup that is the parent of the pods' cgroups. cgroupParent is the name of this
// cgroup for the runtime. cgroups is a pattern for files in the pods' cgroups.
const (
	cgroup       = "/sys/fs/cgroup" + cgroupParent
	cgroupParent = "/vpcsim"
	cgroups      = cgroup + "/*/cgroup.procs"
)

// A sandbox is a pod, as the runtime describes it.
type sandbox struct {
	*vpcsim.Namespace
	id    string
	addrs []netip.Addr
}

// runPod requests a pod of the current network, as kubelet does.
func (s *server) runPod(name string, annotations map[string]string) (id string, err error) {
	request := object{"config": object{
		"metadata":    object{"name": name, "namespace": "shop", "uid": name},
		"annotations": annotations,
		"linux": object{
			"cgroupParent":    cgroupParent,
			"securityContext": object{"namespaceOptions": object{"pid": "CONTAINER"}},
		},
	}}
	if s.handlers {
		request["runtimeHandler"] = s.network
	}
	var answer struct{ PodSandboxID string }
	err = s.call("RunPodSandbox", request, &answer)
	return answer.PodSandboxID, err
}

// newSandbox creates a pod and reads its state.
func (s *server) newSandbox(name string, annotations map[string]string) (*sandbox, error) {
	id, err := s.runPod(name, annotations)
	if err != nil {
		return nil, err
	}
	return s.inspect(id)
}

func (s *server) inspect(id string) (*sandbox, error) {
	var answer struct {
		Status struct {
			State   string
			Network struct {
				IP            netip.Addr
				AdditionalIPs []struct{ IP netip.Addr }
			}
		}
		Info struct{ Info string } // JSON in the runtime's own format
	}
	if err := s.call("PodSandboxStatus", object{"podSandboxId": id, "verbose": true}, &answer); err != nil {
		return nil, err
	}
	if answer.Status.State != "SANDBOX_READY" {
		return nil, fmt.Errorf("sandbox %s is %s", id, answer.Status.State)
	}
	path, err := networkNamespace(answer.Info.Info)
	if err != nil {
		return nil, err
	}
	ns, err := nl.Open(id, path)
	if err != nil {
		return nil, err
	}
	p := &sandbox{Namespace: &vpcsim.Namespace{NS: ns}, id: id, addrs: []netip.Addr{answer.Status.Network.IP}}
	for _, more := range answer.Status.Network.AdditionalIPs {
		p.addrs = append(p.addrs, more.IP)
	}
	return p, nil
}

// networkNamespace returns the path of a sandbox's network namespace. info is the runtime's description in JSON.
func networkNamespace(info string) (string, error) {
	var sandbox struct {
		RuntimeSpec struct {
			Linux struct{ Namespaces []struct{ Type, Path string } }
		}
	}
	if err := json.Unmarshal([]byte(info), &sandbox); err != nil {
		return "", err
	}
	for _, n := range sandbox.RuntimeSpec.Linux.Namespaces {
		if n.Type == "network" {
			return n.Path, nil
		}
	}
	return "", fmt.Errorf("no network namespace in %s", info)
}

// remove deletes a pod, as kubelet does.
func (s *server) remove(id string) error {
	return errors.Join(
		s.call("StopPodSandbox", object{"podSandboxId": id}, nil),
		s.call("RemovePodSandbox", object{"podSandboxId": id}, nil))
}

// networkReady asks the runtime whether the network is ready, as kubelet does every five seconds. The answer decides
// whether the node is Ready.
func (s *server) networkReady(t *testing.T) (ok bool, message string) {
	t.Helper()
	var answer struct {
		Status struct {
			Conditions []struct {
				Type, Message string
				Status        bool
			}
		}
	}
	if err := s.call("Status", object{}, &answer); err != nil {
		t.Fatal(err)
	}
	for _, c := range answer.Status.Conditions {
		if c.Type == "NetworkReady" {
			return c.Status, c.Message
		}
	}
	return false, "unknown"
}
