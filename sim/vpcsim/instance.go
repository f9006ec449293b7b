// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpcsim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// An Instance is an EC2 instance and its namespace. Its Name is the name of the namespace. In the namespace, EC2's API
// is at a loopback address, and the metadata service is at 169.254.169.254.
type Instance struct {
	*ec2sim.Instance
	*Namespace
	StateDir string // the plugins' state directory; two instances have different directories

	region string
	fabric *Fabric
}

// RunInstance launches an instance, with its boot ENI attached and configured. A test can also use an instance as a
// host outside Kubernetes.
func (f *Fabric) RunInstance(name string, r ec2sim.RunInstance) (*Instance, error) {
	f.launch.Lock()
	defer f.launch.Unlock()
	i, err := f.newInstance(name)
	if err != nil {
		return nil, err
	}
	f.setBooting(i)
	i.Instance, err = f.EC2.RunInstance(r)
	f.setBooting(nil)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", name, err), i.Close())
	}
	if err := i.serveHTTP(ec2Addr, 0, f.EC2); err != nil {
		return nil, err
	}
	return i, errors.Join(f.Err(), i.awaitIPv6())
}

// awaitIPv6 waits until the instance is reachable by IPv6. The kernel adds the local route of an IPv6 address in a work
// queue, later than the address, even without duplicate address detection. Before the kernel has added the route,
// senders get the error that there is no route.
func (i *Instance) awaitIPv6() error {
	a := i.Addr6()
	if !a.IsValid() {
		return nil
	}
	local := nl.Route{Dst: hostPrefix(a), Dev: deviceName(i.ENIs()[0]), Table: unix.RT_TABLE_LOCAL, Type: "local"}
	try := time.NewTicker(time.Millisecond)
	defer try.Stop()
	var err error
	for end := time.Now().Add(answerTimeout); time.Now().Before(end); <-try.C {
		if err = local.Check(i.NS); err == nil {
			return nil
		}
	}
	return fmt.Errorf("%s: %s: %w", i.Name, local, err)
}

// newInstance creates the namespace of an instance. It sets the sysctls of systemd (50-default.conf), but not the
// sysctls of kubelet and kube-proxy.
func (f *Fabric) newInstance(name string) (*Instance, error) {
	n, err := f.NewNamespace(name)
	if err != nil {
		return nil, err
	}
	i := &Instance{Namespace: n, StateDir: filepath.Join(f.run.dir, name),
		region: cmp.Or(f.region, "us-east-1"), fabric: f}
	if err := instanceSysctls(n.NS).Add(); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return i, nil
}

func instanceSysctls(n *nl.NS) nl.Wiring {
	return nl.Wiring{
		{NS: n, Object: nl.Sysctl{Key: "net/ipv4/ip_forward", Value: "0"}},
		{NS: n, Object: nl.Sysctl{Key: "net/ipv4/conf/all/rp_filter", Value: "0"}},
		{NS: n, Object: nl.Sysctl{Key: "net/ipv4/conf/default/rp_filter", Value: "2"}},
	}
}

// setBooting stores the instance to which the next boot ENI belongs, or nil. The fabric needs it, because EC2 attaches
// the boot ENI before the fabric knows the instance's ID.
func (f *Fabric) setBooting(i *Instance) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.booting = i
}

// Env returns the environment variables for EC2 and the state directory. No variable has the address of the metadata
// service, because that service is at its usual address.
func (i *Instance) Env() []string {
	return []string{
		"AWS_ENDPOINT_URL_EC2=http://" + ec2Addr,
		"AWS_REGION=" + i.region,
		"AWS_METADATA_SERVICE_TIMEOUT=60", // long, because this machine runs all instances, and may be busy
		"AWS_ACCESS_KEY_ID=AKIAVPCSIM",
		"AWS_SECRET_ACCESS_KEY=secret",
		"CNI_IPVLAN_VPC_STATE_DIR=" + i.StateDir,
	}
}

// Run runs a program on the instance, and returns its standard output and standard error.
func (i *Instance) Run(ctx context.Context, name string, args ...string) (printed string, err error) {
	c := exec.CommandContext(ctx, name, args...)
	c.Env = append(os.Environ(), i.Env()...)
	err = i.Do(func() error {
		out, err := c.CombinedOutput()
		printed = string(out)
		return err
	})
	return printed, err
}

// Addr returns the primary address of the boot ENI; zero if its subnet has no IPv4.
func (i *Instance) Addr() netip.Addr { return firstAddr(i.ENIs()[0].Addrs) }

// Addr6 returns the first IPv6 address of the boot ENI; zero if the ENI has no IPv6 address.
func (i *Instance) Addr6() netip.Addr { return firstAddr(i.ENIs()[0].IPv6Addrs) }

func firstAddr(addrs []netip.Addr) netip.Addr {
	if len(addrs) == 0 {
		return netip.Addr{}
	}
	return addrs[0]
}

// PublicIP returns the public address of the boot ENI; zero if the ENI has no public address.
func (i *Instance) PublicIP() netip.Addr { return i.ENIs()[0].PublicIP }
