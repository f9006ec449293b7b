// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipvlan

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// A pod that asks for an exclusive ENI gets the ENI's own link, which this package calls a card: see [nl.MovedLink].
// The card has the addresses, the routes and the rules that a slave would have. The DEL moves the card back to the
// node. If the namespace ends before the DEL, the kernel moves the card back.

// A Home returns the name that the link of an ENI had on the node, or "" if the name is not known. mac is the ENI's MAC
// address. A Home asks the registry, because the pod can change everything in its namespace.
type Home func(mac string) string

func (nameOnNode Home) moveToNode(c nl.MovedLink, node *nl.NS) error {
	if nameOnNode != nil {
		c.Home = nameOnNode(c.MAC)
	}
	return c.Del(node)
}

// mayHaveCard reports whether an attachment may have a card. It does not parse the pod's requests: the parser would
// make each DEL slower, and a request may be invalid.
func mayHaveCard(r *plugin.Request[Config]) bool { return r.Prev == nil || r.Config.Asks(r.IfName) }

// moveCardsBack moves the attachment's cards from the pod to the node. It finds a card by the card's group. If the pod
// has changed the group, moveCardsBack finds the card by the MAC address in the result of the ADD. The result may also
// have slaves, with the MAC addresses of their ENIs. No card in the pod has the MAC address of a slave, so
// moveCardsBack does nothing for slaves.
func moveCardsBack(r *plugin.Request[Config], nameOnNode Home, node, pod *nl.NS) error {
	if !mayHaveCard(r) {
		return nil
	}
	own := nl.PodGroup(r.Digest())
	cards, failed := pod.Cards(own)
	var nics []plugin.NIC
	if r.Prev != nil {
		nics = plugin.NICs(r.Prev, r.IfName)
	}
	for _, n := range nics {
		if n.MAC != "" && !slices.ContainsFunc(cards, func(c nl.MovedLink) bool { return c.MAC == n.MAC }) {
			cards = append(cards, nl.MovedLink{Name: n.Name, MAC: n.MAC, Group: nl.CardGroup(own)})
		}
	}
	for _, c := range cards {
		c.NS = pod
		if err := nameOnNode.moveToNode(c, node); !errors.Is(err, fs.ErrNotExist) {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

// cleanUpCards gives cards their old names again. These cards have come back to the node because the pod's namespace
// has ended. A card that comes back later keeps the name that the kernel has given it. Nothing depends on the name, so
// a failure is only logged.
func cleanUpCards(ctx context.Context, r *plugin.Request[Config], nameOnNode Home) error {
	if !mayHaveCard(r) {
		return nil
	}
	node, err := nl.NodeOf(ctx)
	if err != nil {
		return err
	}
	defer node.Close()
	cards, failed := node.Cards(nl.PodGroup(r.Digest()))
	for _, c := range cards {
		failed = errors.Join(failed, nameOnNode.moveToNode(c, node))
	}
	if failed != nil {
		slog.Warn("the link of an ENI is back from the pod, and DEL could not undo all changes of the pod to this link",
			"error", failed)
	}
	return nil
}
