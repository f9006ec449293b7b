// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"net/http"
	"slices"
	"strings"
)

// A Lie makes the metadata service give wrong or incomplete answers. Most of the lies below have been seen on EC2. The
// comment of such a lie names the source. A number like #1967 is an issue of aws/amazon-vpc-cni-k8s, and "netutils"
// means lib/lib.sh of amazonlinux/amazon-ec2-net-utils.
type Lie struct {
	eni string // the ENI about which the answers are wrong; empty: all ENIs
	// Returns the ENIs that the service shows instead of the current ENIs. The argument atStart has the ENIs that the
	// service showed when the lie began.
	showENIs func(atStart, current []ENI) []ENI
	// Returns the value that the service shows for a key of the ENI. The argument "value" is the true value. If the
	// function returns "", the service does not show the key.
	showKey func(name, value string) string
	failure int  // the HTTP status of all answers; 0: the service does not fail
	silent  bool // the service does not answer
}

// An activeLie is a Lie that the metadata service tells now.
type activeLie struct {
	Lie
	atStart []ENI
}

// Lie makes the metadata service tell these lies. The lies end when the caller calls stop, or when the instance
// restarts. Several lies about one ENI apply in the order in which they began.
func (i *Instance) Lie(lies ...Lie) (stop func()) {
	i.sim.mu.Lock()
	defer i.sim.mu.Unlock()
	before := i.shownENIs()
	var begun []*activeLie
	for _, l := range lies {
		begun = append(begun, &activeLie{l, before})
	}
	i.lies = append(i.lies, begun...)
	return func() {
		i.sim.mu.Lock()
		defer i.sim.mu.Unlock()
		i.lies = slices.DeleteFunc(i.lies, func(t *activeLie) bool { return slices.Contains(begun, t) })
	}
}

// Reboot restarts the instance. All earlier lies end. The metadata service then tells the given lies, until the caller
// calls stop. After a restart, metadata may omit attached ENIs ([ForgetENI]). It no longer shows an ENI that was
// detached by force (API: DetachNetworkInterface, Force: "The instance metadata will get updated when you stop and
// start the instance"). It is a guess that a reboot also updates the metadata. The simulator calls no listener, because
// the ENIs do not change.
func (i *Instance) Reboot(lies ...Lie) (stop func()) {
	i.sim.mu.Lock()
	i.lies = nil
	i.sim.mu.Unlock()
	return i.Lie(lies...)
}

// ForgetENI returns a lie that omits an attached ENI, as after a restart (#1967, PR #3821).
func ForgetENI(eni string) Lie {
	return Lie{eni: eni, showENIs: func(_, now []ENI) []ENI {
		return slices.DeleteFunc(slices.Clone(now), func(e ENI) bool { return e.ID == eni })
	}}
}

// KeepENI returns a lie that shows an ENI even after EC2 has detached or deleted the ENI. The ENI appears as it was
// when the lie began (#1340, #1008, #359; API: DetachNetworkInterface, Force: "the attributes associated with the
// detached network interface might still be visible").
func KeepENI(eni string) Lie {
	return Lie{eni: eni, showENIs: func(before, now []ENI) []ENI {
		was, here := eniIndex(before, eni), eniIndex(now, eni)
		if was < 0 || here >= 0 {
			return now
		}
		return append(slices.Clone(now), before[was])
	}}
}

// FreezeENI returns a lie that shows an attached ENI as the ENI was when the lie began. The metadata shows addresses
// that the ENI has lost, and omits new addresses (#391, #1070, PR #1177, #3887).
func FreezeENI(eni string) Lie {
	return Lie{eni: eni, showENIs: func(before, now []ENI) []ENI {
		was, here := eniIndex(before, eni), eniIndex(now, eni)
		if was < 0 || here < 0 {
			return now
		}
		now = slices.Clone(now)
		now[here] = before[was]
		return now
	}}
}

// HideKeys returns a lie that answers 404 for these keys of an ENI. On EC2, the keys of a new ENI appear one after
// another, within up to 30 seconds (netutils polls for 30 seconds). On some instance types, the key
// vpc-ipv4-cidr-blocks never appears (kubernetes/kops PR 7402).
func HideKeys(eni string, keys ...string) Lie {
	return Lie{eni: eni, showKey: func(name, value string) string {
		if slices.Contains(keys, name) {
			return ""
		}
		return value
	}}
}

// HideENI returns a lie that answers 404 for all keys of an ENI, although the list of MACs contains the ENI's MAC.
func HideENI(eni string) Lie {
	return Lie{eni: eni, showKey: func(string, string) string { return "" }}
}

// ZeroDeviceNumber returns a lie that answers 0 for the device number of an ENI. For a new ENI, the real metadata
// service answers 0 at first (netutils polls 60 times in 6 seconds).
func ZeroDeviceNumber(eni string) Lie {
	return Lie{eni: eni, showKey: func(name, value string) string {
		if name == "device-number" {
			return "0"
		}
		return value
	}}
}

// LateNetworkCard returns a lie that omits the key network-card of an ENI on an instance with several cards (netutils
// polls for this key 12 times in 12 seconds).
func LateNetworkCard(eni string) Lie { return HideKeys(eni, "network-card") }

// FailENI returns a lie that answers 500 for all keys of an ENI, although the list of MACs contains the ENI's MAC
// (amazonlinux/amazon-ec2-net-utils#161). The status is a guess.
func FailENI(eni string) Lie { return Lie{eni: eni, failure: http.StatusInternalServerError} }

// Unavailable returns a lie that answers all requests with 503, as an overloaded service can do (Guide: "Access
// instance metadata for an EC2 instance", "Query throttling"). The status is a guess, because the guide names no
// status.
func Unavailable() Lie { return Lie{failure: http.StatusServiceUnavailable} }

// Silent returns a lie with which the service never answers. On a real instance, a packet filter can drop the packets,
// or the hop limit is too small (Guide: "Use the Instance Metadata Service to access instance metadata"). EC2 also
// limits packets to link-local addresses: it passes 1024 packets per second, and drops the rest
// (aws/aws-eks-best-practices describes this limit for DNS).
func Silent() Lie { return Lie{silent: true} }

func eniIndex(enis []ENI, id string) int {
	return slices.IndexFunc(enis, func(e ENI) bool { return e.ID == id })
}

// shownENIs returns the ENIs that the metadata shows as attached.
func (i *Instance) shownENIs() []ENI {
	enis := i.currentView().enis
	for _, t := range i.lies {
		if t.showENIs != nil {
			enis = t.showENIs(t.atStart, enis)
		}
	}
	return enis
}

// shownValue returns the value that the metadata shows for a key of an ENI, or "" for none.
func shownValue(lies []*activeLie, e ENI, name, value string) string {
	for _, t := range lies {
		if t.eni == e.ID && t.showKey != nil && value != "" {
			value = t.showKey(name, value)
		}
	}
	return value
}

// requestFailure returns how a request to the metadata service fails: without an answer if silent is true, or else with
// the returned HTTP status. The status is 0 if the request does not fail.
func (i *Instance) requestFailure(path string) (status int, silent bool) {
	i.sim.mu.Lock()
	defer i.sim.mu.Unlock()
	enis := i.shownENIs()
	for _, t := range i.lies {
		n := eniIndex(enis, t.eni)
		about := t.eni == "" || n >= 0 && strings.HasPrefix(path, "/latest/"+macsDir+enis[n].MAC)
		if about && (t.failure != 0 || t.silent) {
			return t.failure, t.silent
		}
	}
	return 0, false
}
