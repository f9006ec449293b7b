// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/vpcsim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// newNode is an instance with a container runtime, as far as pods' networks go.
func newNode(i *vpcsim.Instance, bin string) *node {
	return &node{Instance: i, cni: libcni.NewCNIConfigWithCacheDir([]string{bin}, i.StateDir+".libcni", plugins{i})}
}

// validate asks the kernel for ipvlan, and the plugins for the version of the configuration, as a runtime does when it
// reads one.
func (s *scene) validate(ctx context.Context) error {
	for _, n := range s.nodes {
		if err := (nl.IPVlan{}).Supported(n.NS); err != nil {
			return fmt.Errorf("this kernel has no ipvlan; make demo has a VM that has: %w", err)
		}
		if _, err := n.cni.ValidateNetworkList(ctx, s.list); err != nil {
			return err
		}
	}
	return nil
}

// add makes a pod.
func (s *scene) add(ctx context.Context, n *node, name string) (*pod, error) {
	ns, err := s.NewNamespace(name)
	if err != nil {
		return nil, err
	}
	p := &pod{Namespace: ns, id: "container-of-" + name}
	r, err := n.cni.AddNetworkList(ctx, s.list, p.runtimeConf())
	if err != nil {
		return nil, fmt.Errorf("ADD %s: %w", name, err)
	}
	result, err := types100.GetResult(r)
	if err != nil {
		return nil, fmt.Errorf("ADD %s: %w", name, err)
	}
	if len(result.IPs) != 1 {
		return nil, fmt.Errorf("ADD %s: %d addresses, want one", name, len(result.IPs))
	}
	p.addr, _ = netip.AddrFromSlice(result.IPs[0].Address.IP)
	p.addr = p.addr.Unmap()
	return p, p.Answer(port)
}

// del deletes a pod as a runtime does: its network first, then its namespace.
func (s *scene) del(ctx context.Context, n *node, p *pod) error {
	if err := n.cni.DelNetworkList(ctx, s.list, p.runtimeConf()); err != nil {
		return fmt.Errorf("DEL %s: %w", p.Name, err)
	}
	return p.Close()
}

func (p *pod) runtimeConf() *libcni.RuntimeConf {
	return &libcni.RuntimeConf{
		ContainerID: p.id, NetNS: p.Path, IfName: "eth0",
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "demo"}, {"K8S_POD_NAME", p.Name}},
	}
}

// addAtOnce makes pods at once, and returns how long each took.
func (s *scene) addAtOnce(ctx context.Context, n *node, count int) ([]time.Duration, error) {
	pods, took, errs := make([]*pod, count), make([]time.Duration, count), make([]error, count)
	var wg sync.WaitGroup
	for i := range count {
		name := fmt.Sprintf("%s-pod%d", n.Name, len(n.pods)+i+1)
		wg.Go(func() {
			start := time.Now()
			pods[i], errs[i] = s.add(ctx, n, name)
			took[i] = time.Since(start)
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	n.pods = append(n.pods, pods...)
	return took, nil
}

// tool runs our tool on the node.
func (s *scene) tool(ctx context.Context, n *node, args ...string) error {
	name := "cni-ipvlan-vpc-k8s-tool"
	c := exec.CommandContext(ctx, filepath.Join(s.bin, name), args...)
	c.Env = append(os.Environ(), n.Env()...)
	var out []byte
	err := n.Do(func() (err error) {
		out, err = c.CombinedOutput()
		return err
	})
	if err != nil {
		return fmt.Errorf("%s %s on %s: %w\n%s", name, strings.Join(args, " "), n.Name, err, out)
	}
	return nil
}

// plugins executes them for libcni, on the instance.
type plugins struct{ *vpcsim.Instance }

// ExecPlugin runs a plugin.
func (p plugins) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	c := exec.CommandContext(ctx, path)
	c.Env = append(environ, p.Env()...)
	var stdout, stderr bytes.Buffer
	c.Stdin, c.Stdout, c.Stderr = bytes.NewReader(stdin), &stdout, &stderr
	err := p.Do(c.Run)
	var refusal types.Error
	switch {
	case err == nil:
		return stdout.Bytes(), nil
	case json.Unmarshal(stdout.Bytes(), &refusal) == nil:
		return nil, fmt.Errorf("%w (CNI error %d)", &refusal, refusal.Code)
	}
	return nil, fmt.Errorf("%w: %s%s", err, &stdout, &stderr)
}

// FindInPath finds a plugin.
func (p plugins) FindInPath(plugin string, folders []string) (string, error) {
	for _, dir := range folders {
		if path := filepath.Join(dir, plugin); isFile(path) {
			return filepath.Abs(path)
		}
	}
	return "", fmt.Errorf("no plugin %s in %v: run make build", plugin, folders)
}

func isFile(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.Mode().IsRegular()
}

// Decode reads a plugin's answer to VERSION.
func (p plugins) Decode(b []byte) (version.PluginInfo, error) {
	return (&version.PluginDecoder{}).Decode(b)
}
