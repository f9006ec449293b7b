// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/paths"
)

// A chain is a network configuration on a node.
type chain struct {
	name string
	node *node
	list *libcni.NetworkConfigList
	path []string // directories of the plugins
}

// The names of the chains to which code outside of the function candidates refers.
const (
	ours         = "ours"
	byVeth       = "ours, dataPath veth"
	threePlugins = "ours, three plugins"
	reference    = "ptp + host-local"
	noopChain    = "noop"
)

// A candidate is a chain that bench measures if the chain's programs are installed.
type candidate struct {
	name, conflist string
	needs          []string
}

// candidates returns the chains to measure. Three arguments are our conflists: own has the data path ipvlan, routed has
// the data path veth, and chained has three plugins. The argument "dir" is the node's directory in which host-local
// stores the used addresses.
func candidates(own, routed, chained, dir string) []candidate {
	ptp := func(masq string) string {
		return fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "ptp", "plugins": [{"type": "ptp", %s "ipam":
			{"type": "host-local", "subnet": "10.88.0.0/16", "routes": [{"dst": "0.0.0.0/0"}], "dataDir": %q}}]}`, masq,
			filepath.Join(dir, "host-local"))
	}
	return []candidate{
		{ours, own, []string{"cni-ipvlan-vpc-k8s", "cni-ipvlan-vpc-k8s-grow"}},
		{byVeth, routed, []string{"cni-ipvlan-vpc-k8s", "cni-ipvlan-vpc-k8s-grow"}},
		{threePlugins, chained, []string{"cni-ipvlan-vpc-k8s-ipam", "cni-ipvlan-vpc-k8s-ipvlan",
			"cni-ipvlan-vpc-k8s-unnumbered-ptp"}},
		{reference, ptp(""), []string{"ptp", "host-local"}},
		{"the same, ipMasq iptables", ptp(`"ipMasq": true, "ipMasqBackend": "iptables",`),
			[]string{"ptp", "host-local", "iptables"}},
		{"the same, ipMasq nftables", ptp(`"ipMasq": true, "ipMasqBackend": "nftables",`),
			[]string{"ptp", "host-local", "nft"}},
		{noopChain, `{"cniVersion": "1.1.0", "name": "noop", "plugins": [{"type": "noop"}]}`, []string{"noop"}},
		{"noop + noop + noop",
			`{"cniVersion": "1.1.0", "name": "noop", "plugins": [{"type": "noop"}, {"type": "noop"}, ` +
				`{"type": "noop"}]}`, []string{"noop"}},
	}
}

// warmConflist reads a conflist from a file, and changes it so that no measured ADD needs EC2. An ADD before the
// measurement fills the whole ENI with addresses or prefixes, and an ADD may use a released address at once. If
// dataPath is empty, the file's data path stays.
func warmConflist(file string, first int, prefixes bool, dataPath string) (string, error) {
	list, err := paths.EditConflist(file, func(p map[string]any) error {
		p["reuseIPWait"], p["ipBatchSize"], p["interfaceIndex"], p["prefixDelegation"] = 0, 0, first, prefixes
		if dataPath != "" {
			p["dataPath"] = dataPath
		}
		return nil
	})
	return string(list), err
}

// newChain returns the chain of a candidate. It fails if a program of the chain is neither in dirs nor in $PATH.
func (c candidate) newChain(n *node, dirs []string) (*chain, error) {
	for _, program := range c.needs {
		if _, err := (&executor{}).FindInPath(program, dirs); err == nil {
			continue
		}
		if _, err := exec.LookPath(program); err != nil {
			return nil, err
		}
	}
	l, err := libcni.NetworkConfFromBytes([]byte(c.conflist))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.name, err)
	}
	return &chain{name: c.name, node: n, list: l, path: dirs}, nil
}

// callTimeout is how long one call of a chain may take. A call that works takes much less time.
const callTimeout = time.Minute

func (c *chain) measureCall(ctx context.Context, verb string, p pod) (sample, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	e := &executor{env: c.node.env}
	wall, err := c.execute(ctx, verb, p, e)
	if err != nil {
		return sample{}, err
	}
	return sample{cost{wall, e.cpu()}, e.steps}, nil
}

// execute executes the chain for a pod with the executor e, and returns how long the call took.
func (c *chain) execute(ctx context.Context, verb string, p pod, e *executor) (wall time.Duration, err error) {
	cni := libcni.NewCNIConfigWithCacheDir(c.path, filepath.Join(c.node.dir, "cni"), e)
	rt := &libcni.RuntimeConf{ContainerID: p.id, IfName: "eth0", Args: p.args}
	if p.Namespace != nil { // STATUS has no pod
		rt.NetNS = p.Path
	}
	err = c.node.Do(func() error {
		start := time.Now()
		defer func() { wall = time.Since(start) }()
		switch verb {
		case "DEL":
			return cni.DelNetworkList(ctx, c.list, rt)
		case "STATUS":
			return cni.GetStatusNetworkList(ctx, c.list)
		case "VERSION":
			_, err := cni.GetVersionInfo(ctx, c.list.Plugins[0].Network.Type)
			return err
		}
		_, err := cni.AddNetworkList(ctx, c.list, rt)
		return err
	})
	if err != nil {
		err = fmt.Errorf("%s: %s %s: %w", c.name, verb, p.id, err)
	}
	return wall, err
}

// execAll executes the chain for all pods at once, and returns when the last call is done.
func (c *chain) execAll(ctx context.Context, verb string, ps pods) ([]sample, error) {
	samples, errs := make([]sample, len(ps)), make([]error, len(ps))
	var wg sync.WaitGroup
	for i, p := range ps {
		wg.Go(func() { samples[i], errs[i] = c.measureCall(ctx, verb, p) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return samples, nil
}

func (c *chain) execEach(ctx context.Context, verb string, ps pods) error {
	for _, p := range ps {
		if _, err := c.measureCall(ctx, verb, p); err != nil {
			return err
		}
	}
	return nil
}
