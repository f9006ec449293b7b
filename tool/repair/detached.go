// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package repair

import (
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// RemoveDetached deletes the rules of pods whose veth pairs are gone, and returns them. [Node] does not call it,
// because a rule without its link has no effect.
func RemoveDetached(host *nl.NS) ([]nl.Rule, error) { return ptp.RemoveDetached(host) }

// RemoveGone deletes the objects that serve the routed pods of ENIs whose links are gone, and returns them. If
// RemoveGone returns an object, the caller must call [Node]: see [ptp.RemoveGone].
func RemoveGone(host *nl.NS) (nl.Wiring, error) { return ptp.RemoveGone(host) }

// OfPod reports whether a rule is one that RemoveDetached deletes when its link is gone.
func OfPod(r nl.Rule) bool { return ptp.OfPair(r) }
