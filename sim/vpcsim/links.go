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

// When a pod's namespace ends, the kernel destroys the virtual links in it, such as veths. But it moves network cards,
// such as real ENIs, to the initial namespace (net/core/dev.c: default_device_exit_net). The card keeps its name if the
// name is free there, and otherwise gets the name dev<ifindex>. It keeps its MAC address, MTU and group. It is down,
// and has neither addresses nor routes.
//
// The link of a simulated ENI is a veth. So when the link is gone, the fabric restores the link in the namespace of the
// instance, unless EC2 has detached the ENI. One difference remains: a card keeps its index if the index is free, but a
// restored link always has a new index.
//
// The fabric cannot ask the kernel for the name of a link that is gone. So it stores the name each time a link changes.

// watchLinks follows the links of all ENIs until the fabric is closed. watchLinks opens a socket, and the kernel sends
// reports about changed links to this socket. With the option NETLINK_LISTEN_ALL_NSID (netlink(7)), the kernel also
// reports changes in the namespaces that contain the other end of an ENI's link. These are namespaces of instances, and
// of some pods. netlink.LinkSubscribe does not have this option.
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

// checkLinks calls checkLink for each ENI if matches returns true for the link of the ENI.
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

// link returns the link of an ENI as the fabric has made it. A program may have changed the link later.
func (p pluggedENI) link() nl.Veth { return p.wiring[0].Object.(nl.Veth) }

// checkLink restores the link of an ENI if the link is gone. Then it stores the present name and properties of the
// instance's end, which can be in any namespace.
func (f *Fabric) checkLink(id string) error {
	p := f.plugged[id]
	near, err := f.vpc.LinkByName(p.link().Name)
	if errors.Is(err, fs.ErrNotExist) && !p.lost {
		err = f.restoreLink(p)
		if p.lost = err != nil; p.lost {
			// When restoreLink fails, it removes the new link, and the kernel reports this change. p.lost prevents
			// another attempt then.
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

func (f *Fabric) isLinkMissing(link string) bool {
	_, err := f.vpc.LinkByName(link)
	return errors.Is(err, fs.ErrNotExist)
}

// restoreLink creates the link of an ENI again, in the namespace of its instance, and adds the rest of the ENI's
// wiring. It opens its own nl.NS, because another goroutine may be using the instance's nl.NS.
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
	// nl.Veth gives both ends the last MTU of the instance's end. The fabric's end may need another MTU, which nl.Up
	// sets.
	w := nl.Wiring{{NS: f.vpc.NS, Object: link}, {NS: f.vpc.NS, Object: nl.Up{Dev: link.Name, MTU: mtu}}}
	if err := append(w, lost.wiring[1:]...).Add(); err != nil {
		return fmt.Errorf("its link returns to %s: %w", lost.instance.Name, err)
	}
	return nil
}

// freeName chooses a free name for a link that comes back to the namespace n. It follows the kernel's rules for network
// cards. It tries, in this order: the link's last name, "dev" with the link's last index, and "dev" with the lowest
// free number. If the fabric has never seen the link, fallback replaces the last name.
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
