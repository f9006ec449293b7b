// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"errors"
	"fmt"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/ec2sim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/vpcsim"
)

// port is where everybody answers.
const port = 8080

// A world is the instance that the shell is on, and what is around it.
type world struct {
	*vpcsim.Fabric
	node  *vpcsim.Instance
	hosts []string // lines of /etc/hosts
}

func newWorld() (*world, error) {
	f, err := vpcsim.New(region)
	if err != nil {
		return nil, err
	}
	w := &world{Fabric: f}
	if err := w.populate(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return w, nil
}

func (w *world) populate() error {
	for _, i := range []struct{ name, subnet string }{
		{"node1", "subnet-nodes"}, {"node2", "subnet-nodes"}, {"host", "subnet-hosts"}, {"peer", "subnet-peer"},
	} {
		instance, err := w.RunInstance(i.name, ec2sim.RunInstance{Type: "m5.large", Subnet: i.subnet})
		if err != nil {
			return err
		}
		if w.node == nil {
			w.node = instance
		}
		w.hosts = append(w.hosts, fmt.Sprintf("%s %s", instance.Addr(), i.name))
		if err := instance.Answer(port); err != nil {
			return err
		}
	}
	w.hosts = append(w.hosts, vpcsim.InternetAddr.String()+" internet")
	return w.Internet.Answer(port)
}
