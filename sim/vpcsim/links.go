// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpcsim

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"syscall"

	"github.com/vishvananda/netlink"
	rtnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// A program may move an ENI's link to the namespace of a pod. If the pod's namespace ends, the kernel destroys all
// virtual links in it, such as veths. But the kernel moves network cards, such as real ENIs, to the initial namespace
// (net/core/dev.c: default_device_exit_net). If the name of the card is free in the initial namespace, the card keeps
// its name. If not, it gets the name dev<ifindex>. The card keeps its MAC address, MTU and group. It is down, and has
// neither addresses nor routes.
//
// The link of a simulated ENI is a veth, which the kernel destroys. So the fabric restores the link in the namespace of
// the instance, unless EC2 has detached the ENI. The fabric also restores a link that a program has deleted, because no
// program can delete the link of a real ENI. One difference remains: a card keeps its index if this index is free, but
// a restored link always has a new index.
//
// When a link is gone, the fabric can no longer ask the kernel for the link's name. So the fabric stores the name each
// time a link changes.

// watchLinks follows the links of all ENIs until the fabric is closed. It opens a socket to which the kernel reports
// changes of links. The kernel reports changes in the fabric's namespace. With the option NETLINK_LISTEN_ALL_NSID
// (netlink(7)), the kernel also reports changes in the namespaces that contain the other end of an ENI's link. These
// are the namespaces of instances and of some pods. watchLinks does not use netlink.LinkSubscribe, which does not have
// the option NETLINK_LISTEN_ALL_NSID.
func (f *Fabric) watchLinks() error {
	var s *rtnl.NetlinkSocket
	err := f.vpc.Do(func() (err error) {
		if s, err = rtnl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK); err == nil {
			err = unix.SetsockoptInt(s.GetFd(), unix.SOL_NETLINK, unix.NETLINK_LISTEN_ALL_NSID, 1)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("watch the links of ENIs: %w", err)
	}
	f.vpc.open = append(f.vpc.open, closer(s.Close))
	go f.followLinks(s)
	return nil
}

// A closer is an io.Closer whose Close cannot fail.
type closer func()

func (c closer) Close() error { c(); return nil }

// followLinks calls checkLink for each ENI whose link changes, until the socket is closed.
func (f *Fabric) followLinks(s *rtnl.NetlinkSocket) {
	for {
		messages, _, err := s.Receive()
		switch {
		case err == nil:
			changed := changedLinks(messages)
			f.checkLinks(func(link nl.Veth) bool { return changed[link.Name] || changed[link.PeerMAC] })
		case err == unix.ENOBUFS: // the socket has lost reports, so check all links
			f.checkLinks(func(nl.Veth) bool { return true })
		case err != unix.EINTR:
			return
		}
	}
}

// changedLinks returns the names and the MAC addresses of the links in the messages.
func changedLinks(messages []syscall.NetlinkMessage) map[string]bool {
	changed := map[string]bool{}
	for _, m := range messages {
		if l, err := netlink.LinkDeserialize(nil, m.Data); err == nil {
			changed[l.Attrs().Name], changed[l.Attrs().HardwareAddr.String()] = true, true
		}
	}
	return changed
}

// checkLinks checks the links of some ENIs (see checkLink). The parameter matches is a function that chooses these
// links.
func (f *Fabric) checkLinks(matches func(nl.Veth) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.run == nil {
		return // closed
	}
	for id, p := range f.plugged {
		if !matches(p.link()) {
			continue
		}
		if err := f.checkLink(id); err != nil {
			f.failed = errors.Join(f.failed, fmt.Errorf("%s: %w", id, err))
		}
	}
}

// link returns the link of an ENI with the properties that the fabric gave to the link. A program may have changed the
// link since then.
func (p pluggedENI) link() nl.Veth { return p.wiring[0].Object.(nl.Veth) }

// checkLink restores the link of an ENI if the link is gone. Then it stores the present name and properties of the
// instance's end of the link, which can be in any namespace.
func (f *Fabric) checkLink(id string) error {
	p := f.plugged[id]
	near, err := f.vpc.LinkByName(p.link().Name)
	if errors.Is(err, fs.ErrNotExist) && !p.lost {
		err = f.restoreLink(p)
		if p.lost = err != nil; p.lost {
			// After a failure, restoreLink removes the new link, and the kernel reports this change. Without p.lost,
			// checkLink would then try again, for ever.
			f.plugged[id] = p
			return err
		}
		near, err = f.vpc.LinkByName(p.link().Name)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	far, err := f.vpc.FarEnd(near)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the link is moving or vanishing, so the kernel will report another change
	}
	if err != nil {
		return err
	}
	p.lastSeen = far
	f.plugged[id] = p
	return nil
}

// isLinkMissing reports whether a link is missing in the fabric's namespace.
func (f *Fabric) isLinkMissing(link string) bool {
	_, err := f.vpc.LinkByName(link)
	return errors.Is(err, fs.ErrNotExist)
}

// restoreLink creates the link of an ENI again, in the namespace of its instance, and adds the rest of the ENI's
// wiring. It opens a second nl.NS for the namespace of the instance, because another goroutine may be using the first
// one.
func (f *Fabric) restoreLink(lost pluggedENI) error {
	home, err := nl.Open(lost.instance.Name, lost.instance.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the namespace of the instance is gone, so it needs no link
	}
	if err != nil {
		return err
	}
	defer home.Close()
	link, mtu := lost.link(), lost.link().MTU
	if link.Peer, err = freeName(home, lost.lastSeen, link.Peer); err != nil {
		return err
	}
	link.PeerNS, link.PeerDown, link.PeerGroup = home, true, lost.lastSeen.Group
	if lost.lastSeen.MTU > 0 {
		link.MTU = lost.lastSeen.MTU
	}
	// The two ends can have different MTUs, but nl.Veth gives both ends the same MTU: here, the last MTU of the
	// instance's end. So nl.Up then sets the MTU of the fabric's end.
	w := nl.Wiring{{NS: f.vpc.NS, Object: link}, {NS: f.vpc.NS, Object: nl.Up{Dev: link.Name, MTU: mtu}}}
	if err := append(w, lost.wiring[1:]...).Add(); err != nil {
		return fmt.Errorf("its link returns to %s: %w", lost.instance.Name, err)
	}
	return nil
}

// freeName chooses a name for a link that comes back to the namespace n. It follows the kernel's rules for a network
// card, and takes the first choice that is free. The first choice is the last name of the link. If the fabric has never
// seen the link, the first choice is the argument fallback. The second choice is "dev" and the last index of the link.
// The third choice is "dev" and the lowest free number.
func freeName(n *nl.NS, last nl.Link, fallback string) (string, error) {
	links, err := n.Links()
	if err != nil {
		return "", err
	}
	used := map[string]bool{"": true}
	for _, l := range links {
		used[l.Name] = true
	}
	if last.Index == 0 {
		last.Name = fallback
	}
	name := last.Name
	if used[name] {
		name = "dev" + strconv.Itoa(last.Index)
	}
	for i := 0; used[name]; i++ {
		name = "dev" + strconv.Itoa(i)
	}
	return name, nil
}
