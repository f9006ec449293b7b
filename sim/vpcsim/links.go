// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpcsim

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// An ENI's link may be moved to the namespace of a pod. If that namespace ends, the kernel destroys all virtual links in
// it, such as a veth. But it moves a network card, such as an ENI, to the initial namespace (net/core/dev.c:
// default_device_exit_net). The card keeps its name if that is free there; otherwise it gets the name dev<ifindex>.
// It keeps its MAC address, MTU and group. It is down, and has neither addresses nor routes.
//
// So the fabric restores such a link in its instance. The link is still attached: only EC2 removes it, and its wiring.
// Nobody can delete an ENI's link either, so a link that somebody has deleted comes back, too. The only difference is
// the index: a card keeps its index if that is free.
//
// When the link is gone, nobody can ask for its name any more. So the fabric looks at it whenever something changes.

// watchLinks follows the links of all ENIs until the fabric is closed.
func (f *Fabric) watchLinks() error {
	var fd int
	err := f.vpc.Do(func() (err error) { fd, err = listenLinks(); return err })
	if err != nil {
		return fmt.Errorf("watch the links of ENIs: %w", err)
	}
	socket := os.NewFile(uintptr(fd), "links of ENIs")
	f.vpc.open = append(f.vpc.open, socket)
	c, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	go func() {
		// Read ends when the socket is closed. Close waits until readLinks has returned.
		_ = c.Read(func(fd uintptr) bool { return f.readLinks(int(fd)) })
	}()
	return nil
}

// listenLinks opens a socket that gets all changes of links in this thread's namespace, and in those for which it has an
// ID: those of instances, and of pods that have an ENI's link (netlink(7), NETLINK_LISTEN_ALL_NSID).
func listenLinks() (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_LISTEN_ALL_NSID, 1)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (unix.RTNLGRP_LINK - 1)})
	}
	if err != nil {
		unix.Close(fd)
		return 0, os.NewSyscallError("subscribe", err)
	}
	return fd, nil
}

// readLinks reads all pending changes and looks at the ENIs that they are about. It returns false, which means "call me
// again".
func (f *Fabric) readLinks(fd int) bool {
	changed, all := map[string]bool{}, false // by the fabric's name of the link, or by the MAC address of the ENI
	for b := make([]byte, 1<<16); ; {
		size, _, err := unix.Recvfrom(fd, b, 0)
		switch {
		case err == unix.ENOBUFS: // more changes than the socket holds
			all = true
		case err == unix.EAGAIN:
			f.lookAt(func(link nl.Veth) bool { return all || changed[link.Name] || changed[link.PeerMAC] })
			return false
		case err != nil && err != unix.EINTR:
			return true
		case err == nil:
			noteLinks(b[:size], changed)
		}
	}
}

// noteLinks notes the name and the MAC address of each link in a datagram.
func noteLinks(datagram []byte, changed map[string]bool) {
	messages, err := syscall.ParseNetlinkMessage(datagram)
	if err != nil {
		return
	}
	for _, m := range messages {
		attrs, err := syscall.ParseNetlinkRouteAttr(&m)
		if err != nil {
			continue
		}
		for _, a := range attrs {
			switch a.Attr.Type {
			case unix.IFLA_IFNAME:
				changed[unix.ByteSliceToString(a.Value)] = true
			case unix.IFLA_ADDRESS:
				changed[net.HardwareAddr(a.Value).String()] = true
			}
		}
	}
}

// lookAt looks at the links of the ENIs that which reports.
func (f *Fabric) lookAt(which func(nl.Veth) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.run == nil {
		return // closed
	}
	for id, p := range f.plugged {
		if !which(p.link()) {
			continue
		}
		if err := f.look(id); err != nil {
			f.failed = errors.Join(f.failed, fmt.Errorf("%s: %w", id, err))
		}
	}
}

// link returns the link of an ENI as the fabric creates it.
func (p plugged) link() nl.Veth { return p.wiring[0].Object.(nl.Veth) }

// look notes the name and the properties of an ENI's link, in whichever namespace it is. It restores a link that is
// gone.
func (f *Fabric) look(id string) error {
	p := f.plugged[id]
	near, err := f.vpc.LinkByName(p.link().Name)
	if errors.Is(err, fs.ErrNotExist) && !p.lost {
		err = f.restore(p)
		if p.lost = err != nil; p.lost {
			f.plugged[id] = p // what restore has undone is a change, too, and it would try for ever
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
		return nil // it is moving or going, which is the next change
	}
	if err != nil {
		return err
	}
	p.seen = far
	f.plugged[id] = p
	return nil
}

// gone reports whether the fabric does not have a link.
func (f *Fabric) gone(link string) bool {
	_, err := f.vpc.LinkByName(link)
	return errors.Is(err, fs.ErrNotExist)
}

// restore creates the link of an ENI again, in its instance, and adds the rest of its wiring to it. It opens the
// namespace of the instance for itself, because a namespace that is open serves one goroutine at a time.
func (f *Fabric) restore(p plugged) error {
	home, err := nl.Open(p.instance.Name, p.instance.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the instance is gone, too
	}
	if err != nil {
		return err
	}
	defer home.Close()
	link, mtu := p.link(), p.link().MTU
	if link.Peer, err = freeName(home, p.seen, link.Peer); err != nil {
		return err
	}
	link.PeerNS, link.PeerDown, link.PeerGroup = home, true, p.seen.Group
	if p.seen.MTU > 0 {
		link.MTU = p.seen.MTU
	}
	// The MTU of the fabric's end stays. Add gives both ends the same, before Up.
	w := nl.Wiring{{NS: f.vpc.NS, Object: link}, {NS: f.vpc.NS, Object: nl.Up{Dev: link.Name, MTU: mtu}}}
	if err := append(w, p.wiring[1:]...).Add(); err != nil {
		return fmt.Errorf("its link returns to %s: %w", p.instance.Name, err)
	}
	return nil
}

// freeName returns the name that the kernel gives a link which returns to the namespace n: the name that it was last seen
// with; or "dev" and its index there; or "dev" and the lowest free number. A link that was never seen gets the name
// unseen.
func freeName(n *nl.NS, last nl.Link, unseen string) (string, error) {
	links, err := n.Links()
	if err != nil {
		return "", err
	}
	used := map[string]bool{"": true}
	for _, l := range links {
		used[l.Name] = true
	}
	if last.Index == 0 {
		last.Name = unseen
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
