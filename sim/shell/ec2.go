// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/api"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

const ec2Usage = `usage:
  ec2 enis              the ENIs that EC2 has
  ec2 calls             how often each action was called, and how often EC2 refused the action
  ec2 detach ENI        another program detaches an ENI
  ec2 unassign ADDRESS  another program takes an address from its ENI
  ec2 throttle [ACTION] EC2 throttles the action, or all actions
  ec2 deny ACTION       the nodes' role no longer allows the action
  ec2 list              the faults that these commands have made
  ec2 undo [N]          end the last fault, or the fault with number N of the list`

// A madeFault is a fault that the person at the shell has made in EC2, and the function that ends the fault.
type madeFault struct {
	description string
	undo        func() error
}

// ec2Command runs the command "ec2".
func (c *control) ec2Command(args []string, out io.Writer) error {
	verb, about := strings.Join(args[:min(1, len(args))], ""), strings.Join(args[min(1, len(args)):], " ")
	switch {
	case verb == "enis" && about == "":
		for _, e := range c.scene.EC2.ENIs() {
			fmt.Fprintf(out, "%s  %s  %s  device %d  %v\n", e.ID, e.Subnet, e.Instance, e.Index, e.Addrs)
		}
		return nil
	case verb == "calls" && about == "":
		c.printCalls(out)
		return nil
	case verb == "list" && about == "":
		for i, b := range c.madeFaults {
			fmt.Fprintf(out, "%d  %s\n", i+1, b.description)
		}
		return nil
	case verb == "undo":
		return c.undo(about)
	}
	undo, err := c.makeFault(verb, about)
	if err == nil {
		c.madeFaults = append(c.madeFaults, madeFault{strings.TrimSpace(verb + " " + about), undo})
	}
	return err
}

// makeFault makes a fault in EC2. The function "undo" ends the fault.
func (c *control) makeFault(verb, about string) (undo func() error, err error) {
	switch {
	case verb == "detach" && about != "":
		return c.detachENI(about)
	case verb == "unassign" && about != "":
		return c.unassignAddr(about)
	case verb == "throttle" && about == "":
		return c.refuseActions("RequestLimitExceeded", api.Names(0)...)
	case verb == "throttle":
		return c.refuseActions("RequestLimitExceeded", about)
	case verb == "deny" && about != "":
		return c.refuseActions("UnauthorizedOperation", about)
	}
	return nil, errors.New(ec2Usage)
}

func (c *control) undo(number string) error {
	n := len(c.madeFaults)
	if number != "" {
		n, _ = strconv.Atoi(number) // 0 if it is no number
	}
	if n < 1 || n > len(c.madeFaults) {
		return fmt.Errorf("undo: want the number of a fault: ec2 list shows %d faults", len(c.madeFaults))
	}
	if err := c.madeFaults[n-1].undo(); err != nil {
		return err
	}
	c.madeFaults = slices.Delete(c.madeFaults, n-1, n)
	return nil
}

// printCalls prints how many calls EC2 has got, by action and error code.
func (c *control) printCalls(out io.Writer) {
	made := map[string]int{}
	for _, call := range c.scene.EC2.Calls() {
		made[strings.TrimSuffix(call.Action+" "+call.Code, " ")]++
	}
	for _, action := range slices.Sorted(maps.Keys(made)) {
		fmt.Fprintf(out, "%4d  %s\n", made[action], action)
	}
}

func (c *control) refuseActions(code string, actions ...string) (undo func() error, err error) {
	for _, a := range actions {
		if !slices.Contains(api.Names(0), a) {
			return nil, fmt.Errorf("%q is no action that our programs call. ec2 calls shows such actions", a)
		}
	}
	for _, a := range actions {
		c.scene.EC2.Fail(a, code, -1)
	}
	return func() error {
		for _, a := range actions {
			c.scene.EC2.Fail(a, code, 0)
		}
		return nil
	}, nil
}

func (c *control) detachENI(eni string) (undo func() error, err error) {
	e, err := c.findENI(func(e ec2sim.ENI) bool { return e.ID == eni && e.Instance != "" })
	if err != nil {
		return nil, fmt.Errorf("detach: no instance has the ENI %s", eni)
	}
	return func() error {
		return c.operate("AttachNetworkInterface", "NetworkInterfaceId", e.ID, "InstanceId", e.Instance,
			"DeviceIndex", strconv.Itoa(e.Index))
	}, c.operate("DetachNetworkInterface", "AttachmentId", e.Attachment, "Force", "true")
}

func (c *control) unassignAddr(address string) (undo func() error, err error) {
	a, err := netip.ParseAddr(address)
	if err != nil {
		return nil, fmt.Errorf("unassign: %q: want an address", address)
	}
	e, err := c.findENI(func(e ec2sim.ENI) bool { return slices.Contains(e.Addrs, a) })
	if err != nil {
		return nil, fmt.Errorf("unassign: no ENI has the address %s", a)
	}
	on := []string{"NetworkInterfaceId", e.ID, "PrivateIpAddress.1", address}
	return func() error { return c.operate("AssignPrivateIpAddresses", on...) },
		c.operate("UnassignPrivateIpAddresses", on...)
}

func (c *control) findENI(match func(ec2sim.ENI) bool) (e ec2sim.ENI, err error) {
	all := c.scene.EC2.ENIs()
	i := slices.IndexFunc(all, match)
	if i < 0 {
		return e, errors.New("EC2 has no such ENI")
	}
	return all[i], nil
}

// operate calls EC2 as an operator does. The parameters are a name, its value, the next name and so on.
func (c *control) operate(action string, parameters ...string) error {
	f := map[string]string{}
	for i := 0; i < len(parameters); i += 2 {
		f[parameters[i]] = parameters[i+1]
	}
	return errors.Join(c.scene.EC2.Operate(action, f), c.scene.Err())
}
