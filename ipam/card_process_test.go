// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam_test

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// twoCards is an instance type that has ENIs for pods at the device indexes 1 and 2 of each of its cards.
var twoCards = ec2sim.InstanceType{Name: "two.cards", ENIs: 6, IPv4PerENI: 4, Cards: []int{3, 3}}

// TestProcessBurstOnCards runs ADDs at once until the cards have no free slot.
func TestProcessBurstOnCards(t *testing.T) {
	n := newNode(t, twoCards.Name, ec2sim.Config{InstanceTypes: []ec2sim.InstanceType{twoCards}}, nil)
	const room = 4 * 4
	_, failed := n.burst(0, room+2)
	if len(n.pods) != room || len(failed) != 2 {
		t.Errorf("%d pods have an address, want %d: %v", len(n.pods), room, failed)
	}
	perCard := map[int]int{}
	for _, e := range n.ENIs() {
		perCard[e.Card]++
	}
	if perCard[0] != 3 || perCard[1] != 2 {
		t.Errorf("ENIs on the cards: %v", perCard)
	}
	n.Age(time.Hour)
	n.run(n.gc())
	n.intact()
}

// TestProcessKilledOnCards kills an ADD at each of its calls to EC2, before or after EC2 carries out the call. This ADD
// attaches an ENI to the second card.
func TestProcessKilledOnCards(t *testing.T) {
	config := ec2sim.Config{InstanceTypes: []ec2sim.InstanceType{twoCards}}
	var calls atomic.Int32
	n := newNode(t, twoCards.Name, config, func(service string, h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if service == "ec2" {
				calls.Add(1)
			}
			h.ServeHTTP(w, r)
		})
	})
	n.add("victim")
	t.Logf("%d calls of EC2", calls.Load())
	v := victim{name: "ADD first", command: addVictim}
	for call := range int(calls.Load()) {
		for _, after := range []bool{false, true} {
			b := blow{"ec2", call + 1, after}
			t.Run(b.String(), func(t *testing.T) {
				h := &hand{}
				n := newNode(t, twoCards.Name, config, h.via)
				v.hit(n, h, b)
				n.run(n.cni("DEL", "victim", nil))
				n.lost("victim")
				n.add("another")
				for _, e := range n.ENIs() {
					if e.Index > 0 && (e.Card != 1 || e.Index != 1) {
						t.Errorf("%s is at index %d of card %d", e.ID, e.Index, e.Card)
					}
				}
				n.Age(time.Hour)
				n.run(n.gc())
				n.intact()
			})
		}
	}
}
