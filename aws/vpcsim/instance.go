// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpcsim

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

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
	return i, errors.Join(f.Err(), i.settle())
}

// settle waits until the instance is reachable by IPv6. The kernel adds the local route to an address later than the
// address itself, from a work queue, even if it does not look for duplicates; until then it answers that there is no route.
func (i *Instance) settle() error {
	a := i.Addr6()
	if !a.IsValid() {
		return nil
	}
	local := nl.Route{Dst: prefix(a), Dev: deviceName(i.ENIs()[0]), Table: unix.RT_TABLE_LOCAL, Type: "local"}
	try := time.NewTicker(time.Millisecond)
	defer try.Stop()
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); <-try.C {
		if err = local.Check(i.NS); err == nil {
			return nil
		}
	}
	return fmt.Errorf("%s: %s: %w", i.Name, local, err)
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

// Addr is the primary address of the boot ENI; zero if its subnet has no IPv4.
func (i *Instance) Addr() netip.Addr { return first(i.ENIs()[0].Addrs) }

// Addr6 is the first IPv6 address of the boot ENI; zero if it has none.
func (i *Instance) Addr6() netip.Addr { return first(i.ENIs()[0].IPv6Addrs) }

func first(addrs []netip.Addr) netip.Addr {
	if len(addrs) == 0 {
		return netip.Addr{}
	}
	return addrs[0]
}

// PublicIP is the public address of the boot ENI; zero if it has none.
func (i *Instance) PublicIP() netip.Addr { return i.ENIs()[0].PublicIP }
