// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpcsim

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/ec2sim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// An Instance is an instance and its namespace, which bears its name. From it, EC2's API is at an address of the
// loopback, and the metadata service where it always is.
type Instance struct {
	*ec2sim.Instance
	*Namespace
	StateDir string // a folder of its own, for what a real one has in /run

	region string
}

// RunInstance launches an instance, with its boot ENI plugged in and configured. A host that is no node of Kubernetes is
// an instance, too.
func (f *Fabric) RunInstance(name string, r ec2sim.RunInstance) (*Instance, error) {
	f.launch.Lock()
	defer f.launch.Unlock()
	i, err := f.newInstance(name)
	if err != nil {
		return nil, err
	}
	f.boot(i)
	i.Instance, err = f.EC2.RunInstance(r)
	f.boot(nil)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", name, err), i.Close())
	}
	if err := i.serve(ec2Addr, 0, f.EC2); err != nil {
		return nil, err
	}
	return i, f.Err()
}

// newInstance makes the namespace of an instance and sets what systemd sets (50-default.conf), and not what kubelet
// and kube-proxy do.
func (f *Fabric) newInstance(name string) (*Instance, error) {
	n, err := f.NewNamespace(name)
	if err != nil {
		return nil, err
	}
	i := &Instance{Namespace: n, StateDir: filepath.Join(f.run.dir, name), region: cmp.Or(f.region, "us-east-1")}
	err = nl.Wiring{
		{NS: n.NS, Object: nl.Sysctl{Key: "net/ipv4/ip_forward", Value: "0"}},
		{NS: n.NS, Object: nl.Sysctl{Key: "net/ipv4/conf/all/rp_filter", Value: "0"}},
		{NS: n.NS, Object: nl.Sysctl{Key: "net/ipv4/conf/default/rp_filter", Value: "2"}},
	}.Add()
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return i, nil
}

// boot says whose the boot ENI is that EC2 is about to attach to an instance it has not yet told the ID of.
func (f *Fabric) boot(i *Instance) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.booting = i
}

// Env is the environment by which programs on the instance find EC2 and their folder for state. They find the metadata
// service where it always is.
func (i *Instance) Env() []string {
	return []string{
		"AWS_ENDPOINT_URL_EC2=http://" + ec2Addr,
		"AWS_REGION=" + i.region,
		"AWS_ACCESS_KEY_ID=AKIAVPCSIM",
		"AWS_SECRET_ACCESS_KEY=secret",
		"CNI_IPVLAN_VPC_STATE_DIR=" + i.StateDir,
	}
}

// Addr is the primary address of the boot ENI.
func (i *Instance) Addr() netip.Addr { return i.ENIs()[0].Addrs[0] }

// PublicIP is the public address of the boot ENI; zero if it has none.
func (i *Instance) PublicIP() netip.Addr { return i.ENIs()[0].PublicIP }
