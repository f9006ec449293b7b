// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package connectivity

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// DefaultPort is the port at which Serve answers by default.
const DefaultPort = 7472

// Serve makes a pod and answers at a port of the node until the context ends. Serve calls ready when it can answer.
func (t Test) Serve(ctx context.Context, ready func(Report) error) (err error) {
	s, err := t.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	s.cni.port = t.Port
	r := Report{Network: t.Network.Name, Paths: []Row{}}
	if rows := s.makePods(ctx, &r, "serve"); len(s.pods) == 0 {
		return errors.New(rows[0].Cause)
	}
	front, err := startServer(s.node, t.Port, s.pods[0])
	if err != nil {
		return err
	}
	defer front.close()
	if err := ready(r); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// askPeer asks the other node, on which connectivity-test --serve runs, for the addresses and the port of its pod. It
// asks at most three times, and stores the answer or the error in s.
func (s *scene) askPeer() {
	if !s.Peer.IsValid() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.askWithin())
	defer cancel()
	s.peer, s.peerErr = callServer(ctx, s.node, netip.AddrPortFrom(s.Peer, s.Port), call{Size: smallCall})
	for range 2 {
		if s.peerErr == nil {
			return
		}
		time.Sleep(pathTimeout / 20)
		s.peer, s.peerErr = callServer(ctx, s.node, netip.AddrPortFrom(s.Peer, s.Port), call{Size: smallCall})
	}
}

// peerPaths returns the paths between this node and the node on which connectivity-test --serve runs.
func (s *scene) peerPaths(f nl.Family) (all []path) {
	a, node := s.pods[0], netip.AddrPortFrom(s.Peer, s.Port)
	if nl.FamilyOf(s.Peer) == f {
		all = append(all, path{name: "node to peer's node", family: f, from: s.node, to: node, advice: peerAdvice,
			probe: func(ctx context.Context) error { return callSmallAndLarge(ctx, s.node, node) }},
			path{name: "pod to peer's node", family: f, from: a.ns, pod: a, to: node, advice: peerAdvice,
				probe: func(ctx context.Context) error { return callSmallAndLarge(ctx, a.ns, node) }})
	}
	for _, addr := range s.peer.Pods {
		if nl.FamilyOf(addr) != f {
			continue
		}
		to := netip.AddrPortFrom(addr, s.peer.Port)
		all = append(all, path{name: "pod to peer's pod", family: f, from: a.ns, pod: a, to: to, advice: peerAdvice,
			probe: func(ctx context.Context) error { return callSmallAndLarge(ctx, a.ns, to) }},
			path{name: "node to peer's pod", family: f, from: s.node, to: to, advice: peerAdvice,
				probe: func(ctx context.Context) error { return callSmallAndLarge(ctx, s.node, to) }},
			path{name: "peer's pod to pod", family: f, from: a.ns, pod: a, to: netip.AddrPortFrom(addr, 0),
				advice: peerAdvice,
				probe:  func(ctx context.Context) error { return askCallBack(ctx, a, to) }})
	}
	return all
}

// askCallBack asks the other node's pod to call the pod p of this node. If the other node's pod gets no answer,
// askCallBack returns an error.
func askCallBack(ctx context.Context, p *pod, to netip.AddrPort) error {
	a, err := callServer(ctx, p.ns, to, call{Size: smallCall, Back: p.server.port()})
	if err != nil {
		return connError(err)
	}
	if a.Back != "" {
		return errors.New("the pod of the other node gets no answer from this node's pod: " + a.Back)
	}
	return nil
}

const peerAdvice = "on both nodes, the ENI's security groups and the subnet's network ACL must allow the packets. " +
	"The subnet's route table must have a route to the other node. On the other node, connectivity-test " +
	"--serve must run"
