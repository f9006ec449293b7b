// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"
	"unsafe"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A Neigh tells the kernel the MAC address of an address on a link, so the kernel does not ask for the MAC address. An
// unnumbered link needs a Neigh, because it has no address of its own. In IPv6, the kernel answers a question only for
// the addresses of the link that gets the question. In IPv4, the kernel does the same if arp_ignore is 1. With
// strictARP, kube-proxy sets arp_ignore=1 on the whole node.
type Neigh struct {
	Addr netip.Addr
	MAC  string
	Dev  string
}

func (e Neigh) String() string {
	return fmt.Sprintf("ip neigh add %s lladdr %s dev %s", e.Addr, e.MAC, e.Dev)
}

// Add adds a permanent entry. Add replaces an entry that the kernel has learned.
func (e Neigh) Add(n *NS) error {
	msg, attrs, err := e.message(n)
	if err != nil {
		return err
	}
	err = n.change(unix.RTM_NEWNEIGH, addNew, msg, attrs...)
	switch {
	case !errors.Is(err, fs.ErrExist):
		return err
	case e.Check(n) == nil:
		return errSame
	}
	return n.change(unix.RTM_NEWNEIGH, addReplace, msg, attrs...)
}

// Del deletes the entry.
func (e Neigh) Del(n *NS) error {
	msg, attrs, err := e.message(n)
	if err != nil {
		return err
	}
	return n.change(unix.RTM_DELNEIGH, 0, msg, attrs...)
}

func (e Neigh) message(n *NS) (*neighMessage, []attribute, error) {
	index, err := n.index(e.Dev)
	if err != nil {
		return nil, nil, err
	}
	mac, err := net.ParseMAC(e.MAC)
	msg := &neighMessage{Family: uint8(FamilyOf(e.Addr)), Ifindex: int32(index), State: unix.NUD_PERMANENT}
	return msg, []attribute{attrAddr(unix.NDA_DST, e.Addr), attr(unix.NDA_LLADDR, mac)}, err
}

// Check reports an entry that is missing, has another MAC address, or is not permanent.
func (e Neigh) Check(n *NS) error {
	index, err := n.index(e.Dev)
	if err != nil {
		return err
	}
	ask := &neighMessage{Family: uint8(FamilyOf(e.Addr)), Ifindex: int32(index)}
	msgs, err := n.request(unix.NETLINK_ROUTE, unix.RTM_GETNEIGH, 0, unix.RTM_NEWNEIGH, ask,
		attrAddr(unix.NDA_DST, e.Addr))
	if err != nil {
		return err
	}
	if len(msgs) == 0 {
		return fmt.Errorf("there is no such neighbour: %w", fs.ErrNotExist)
	}
	mac, state, err := parseNeigh(msgs[0])
	switch {
	case err != nil:
		return err
	case mac != e.MAC:
		return differs("lladdr", mac, e.MAC)
	case state&unix.NUD_PERMANENT == 0:
		return errors.New("the entry is not permanent")
	}
	return nil
}

// parseNeigh reads an answer to RTM_GETNEIGH, rtnetlink(7): a struct ndmsg and attributes. In the struct, the state is
// behind the family, padding and the index.
func parseNeigh(m []byte) (mac string, state uint16, err error) {
	if len(m) < unix.SizeofNdMsg {
		return "", 0, fmt.Errorf("%d bytes are no neighbour", len(m))
	}
	for typ, value := range attrsOf(m[unix.SizeofNdMsg:]) {
		if typ == unix.NDA_LLADDR {
			mac = net.HardwareAddr(value).String()
		}
	}
	return mac, binary.NativeEndian.Uint16(m[8:]), nil
}

// Neighbours lists the addresses of the permanent neighbours on the links of a namespace, by the index of the link.
// Only root makes such entries. Programs that remove routes and rules of other programs leave these entries.
//
// The kernel does not mark a list of neighbours that a change has interrupted. Two lists cannot be compared as a whole,
// because the message about an entry has the entry's age. So if a list has several parts, Neighbours reads the list
// again, until a reading has no entry that the earlier readings lack. After ten such readings, Neighbours fails.
func (n *NS) Neighbours() (map[int][]netip.Addr, error) {
	all, known := map[int][]netip.Addr{}, -1
	err := retry(func() error {
		msgs, err := n.once(unix.NETLINK_ROUTE, unix.RTM_GETNEIGH, unix.NLM_F_DUMP, unix.RTM_NEWNEIGH, &neighMessage{})
		before := known
		known = 0
		for _, m := range msgs {
			if index, a, is := permanent(m); is && !slices.Contains(all[index], a) {
				all[index] = append(all[index], a)
			}
		}
		for _, addrs := range all {
			known += len(addrs)
		}
		if err == nl.ErrDumpInterrupted && known == before {
			return nil
		}
		return err
	})
	return all, kernel(err)
}

// permanent returns the address of a neighbour in an answer, and the index of its link. The last result reports whether
// the neighbour is permanent.
func permanent(m []byte) (index int, a netip.Addr, is bool) {
	_, state, err := parseNeigh(m)
	if err != nil || state&unix.NUD_PERMANENT == 0 {
		return 0, a, false
	}
	for typ, value := range attrsOf(m[unix.SizeofNdMsg:]) {
		if typ == unix.NDA_DST {
			a = addrFrom(value)
		}
	}
	return int(int32(binary.NativeEndian.Uint32(m[4:]))), a, a.IsValid()
}

// neighMessage is the header of a message about a neighbour, struct ndmsg of rtnetlink(7).
type neighMessage unix.NdMsg

func (m *neighMessage) Len() int { return unix.SizeofNdMsg }

func (m *neighMessage) Serialize() []byte {
	return (*[unix.SizeofNdMsg]byte)(unsafe.Pointer(m))[:]
}
