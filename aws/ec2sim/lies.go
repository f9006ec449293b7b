// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"net/http"
	"slices"
	"strings"
)

// A Lie is something that the metadata service says, or keeps to itself, against the truth. The functions below are the
// lies that people have met; a number like #1967 is an issue of aws/amazon-vpc-cni-k8s, "netutils" is lib/lib.sh of
// amazonlinux/amazon-ec2-net-utils.
type Lie struct {
	eni     string                          // that it is about; empty: about all
	enis    func(before, now []ENI) []ENI   // other ENIs than there are; before is what was shown when the lie began
	key     func(name, value string) string // another value of a key of the ENI, empty for none
	failure int                             // this status in place of an answer
	silent  bool                            // no answer at all
}

// A telling is a lie that is being told.
type telling struct {
	Lie
	before []ENI
}

// Lie has the metadata service tell these lies, until stop is called or the instance restarts. Lies about the same ENI
// add up, in the order in which they began.
func (i *Instance) Lie(lies ...Lie) (stop func()) {
	i.sim.mu.Lock()
	defer i.sim.mu.Unlock()
	before := i.told()
	var begun []*telling
	for _, l := range lies {
		begun = append(begun, &telling{l, before})
	}
	i.lies = append(i.lies, begun...)
	return func() {
		i.sim.mu.Lock()
		defer i.sim.mu.Unlock()
		i.lies = slices.DeleteFunc(i.lies, func(t *telling) bool { return slices.Contains(begun, t) })
	}
}

// Reboot restarts the instance. Its metadata begins anew, with these lies and none of those before: after a restart it may
// leave attached ENIs out ([ForgetENI]), and what it has kept of ENIs that were detached by force is gone (API:
// DetachNetworkInterface, Force: "The instance metadata will get updated when you stop and start the instance"; that a
// mere reboot is enough is a guess). ENIs and addresses stay as they are, and a data plane is told nothing.
func (i *Instance) Reboot(lies ...Lie) (stop func()) {
	i.sim.mu.Lock()
	i.lies = nil
	i.sim.mu.Unlock()
	return i.Lie(lies...)
}

// ForgetENI leaves an ENI out that is attached (#1967, after a restart; PR #3821).
func ForgetENI(eni string) Lie {
	return Lie{eni: eni, enis: func(_, now []ENI) []ENI {
		return slices.DeleteFunc(slices.Clone(now), func(e ENI) bool { return e.ID == eni })
	}}
}

// KeepENI goes on showing an ENI that is detached, or deleted, as it was when the lie began (#1340, #1008, #359; API:
// DetachNetworkInterface, Force: "the attributes associated with the detached network interface might still be visible").
func KeepENI(eni string) Lie {
	return Lie{eni: eni, enis: func(before, now []ENI) []ENI {
		was, here := find(before, eni), find(now, eni)
		if was < 0 || here >= 0 {
			return now
		}
		return append(slices.Clone(now), before[was])
	}}
}

// FreezeENI shows an ENI, for as long as it is attached, as it was when the lie began: with addresses that it has lost
// and without those that it has got (#391, #1070, PR #1177, #3887).
func FreezeENI(eni string) Lie {
	return Lie{eni: eni, enis: func(before, now []ENI) []ENI {
		was, here := find(before, eni), find(now, eni)
		if was < 0 || here < 0 {
			return now
		}
		now = slices.Clone(now)
		now[here] = before[was]
		return now
	}}
}

// HideKeys has no such keys for an ENI: it answers 404 to them. The keys of a new ENI come one after another, for up to 30
// seconds (netutils polls for them as long); on some types vpc-ipv4-cidr-blocks never came (kubernetes/kops PR 7402).
func HideKeys(eni string, keys ...string) Lie {
	return Lie{eni: eni, key: func(name, value string) string {
		if slices.Contains(keys, name) {
			return ""
		}
		return value
	}}
}

// HideENI answers 404 to everything below an ENI's MAC, which is in the list of MACs all the same: HideKeys at its worst.
func HideENI(eni string) Lie {
	return Lie{eni: eni, key: func(string, string) string { return "" }}
}

// ZeroDeviceNumber has the device number of an ENI be 0, as it is until the true one has come (netutils polls for that 60
// times in 6 seconds).
func ZeroDeviceNumber(eni string) Lie {
	return Lie{eni: eni, key: func(name, value string) string {
		if name == "device-number" {
			return "0"
		}
		return value
	}}
}

// LateNetworkCard has no network card for an ENI of an instance with several (netutils polls for it 12 times in 12
// seconds).
func LateNetworkCard(eni string) Lie { return HideKeys(eni, "network-card") }

// FailENI answers 500 to everything about an ENI but the list of MACs (amazonlinux/amazon-ec2-net-utils#161, where such an
// error passed for "no addresses" and took them all off the interface; the status is a guess).
func FailENI(eni string) Lie { return Lie{eni: eni, failure: http.StatusInternalServerError} }

// Unavailable answers 503 to everything, as a service under too many requests may (Guide: "Access instance metadata for
// an EC2 instance", "Query throttling", which does not name the status: it is a guess).
func Unavailable() Lie { return Lie{failure: http.StatusServiceUnavailable} }

// Silent answers nothing, and leaves the caller waiting, as a packet filter in the way does, or a hop limit that is too
// small (Guide: "Use the Instance Metadata Service to access instance metadata"), or the limit of 1024 packets per second
// for link-local services (aws/aws-eks-best-practices, of DNS).
func Silent() Lie { return Lie{silent: true} }

func find(enis []ENI, id string) int {
	return slices.IndexFunc(enis, func(e ENI) bool { return e.ID == id })
}

// told are the ENIs that the metadata says are attached.
func (i *Instance) told() []ENI {
	enis := i.present().enis
	for _, t := range i.lies {
		if t.enis != nil {
			enis = t.enis(t.before, enis)
		}
	}
	return enis
}

// lyingKey is the value that the metadata says a key of an ENI has, or empty for none.
func lyingKey(lies []*telling, e ENI, name, value string) string {
	for _, t := range lies {
		if t.eni == e.ID && t.key != nil && value != "" {
			value = t.key(name, value)
		}
	}
	return value
}

// refusal is what keeps a request to the metadata from its answer: a status, or silence.
func (i *Instance) refusal(path string) (status int, silent bool) {
	i.sim.mu.Lock()
	defer i.sim.mu.Unlock()
	enis := i.told()
	for _, t := range i.lies {
		n := find(enis, t.eni)
		about := t.eni == "" || n >= 0 && strings.HasPrefix(path, "/latest/"+macsDir+enis[n].MAC)
		if about && (t.failure != 0 || t.silent) {
			return t.failure, t.silent
		}
	}
	return 0, false
}
