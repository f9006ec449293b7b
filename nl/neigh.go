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

// A Neigh is a permanent neighbour entry: the MAC address for an IP address on a link. With such an entry, the kernel
// does not ask the other end of the link for its MAC address. An end without addresses would not answer. In IPv6, a
// kernel answers only for addresses of the link that gets the question. In IPv4, a kernel does the same if arp_ignore
// is 1. kube-proxy's strictARP sets arp_ignore to 1 on the whole node.
type Neigh struct {
	Addr netip.Addr
	MAC  string
	Dev  string
}

func (e Neigh) String() string {
	return fmt.Sprintf("ip neigh add %s lladdr %s dev %s", e.Addr, e.MAC, e.Dev)
}

// Add adds the entry. It replaces the kernel's entry for the IP address if the kernel's entry is not permanent, or has
// another MAC address.
func (e Neigh) Add(n *NS) error {
	msg, attrs, err := e.netlinkMessage(n)
	if err != nil {
		return err
	}
	err = n.applyChange(unix.RTM_NEWNEIGH, addNew, msg, attrs...)
	switch {
	case !errors.Is(err, fs.ErrExist):
		return err
	case e.Check(n) == nil:
		return errSame
	}
	return n.applyChange(unix.RTM_NEWNEIGH, addReplace, msg, attrs...)
}

func (e Neigh) Del(n *NS) error {
	msg, attrs, err := e.netlinkMessage(n)
	if err != nil {
		return err
	}
	return n.applyChange(unix.RTM_DELNEIGH, 0, msg, attrs...)
}

func (e Neigh) netlinkMessage(n *NS) (*neighMessage, []attribute, error) {
	index, err := n.linkIndex(e.Dev)
	if err != nil {
		return nil, nil, err
	}
	mac, err := net.ParseMAC(e.MAC)
	msg := &neighMessage{Family: uint8(FamilyOf(e.Addr)), Ifindex: int32(index), State: unix.NUD_PERMANENT}
	return msg, []attribute{attrAddr(unix.NDA_DST, e.Addr), attr(unix.NDA_LLADDR, mac)}, err
}

func (e Neigh) Check(n *NS) error {
	index, err := n.linkIndex(e.Dev)
	if err != nil {
		return err
	}
	ask := &neighMessage{Family: uint8(FamilyOf(e.Addr)), Ifindex: int32(index)}
	msgs, err := n.sendRequest(unix.NETLINK_ROUTE, unix.RTM_GETNEIGH, 0, unix.RTM_NEWNEIGH, ask,
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
		return mismatchError("lladdr", mac, e.MAC)
	case state&unix.NUD_PERMANENT == 0:
		return errors.New("the entry is not permanent")
	}
	return nil
}

// parseNeigh decodes an answer to RTM_GETNEIGH, rtnetlink(7): a struct ndmsg and attributes.
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

// Neighbours maps the index of each link to the IP addresses of the link's permanent neighbour entries. Only root can
// add such entries. Some programs remove the routes and rules of other programs, but leave these entries. So the
// entries show addresses of pods even when the routes are gone.
//
// A dump of neighbours may lack entries if it has several parts (see isUnmarkedDump). Two dumps are never equal,
// because they contain the ages of the entries. So Neighbours repeats a dump of several parts until a dump brings no
// new entry. It fails after ten dumps.
func (n *NS) Neighbours() (map[int][]netip.Addr, error) {
	all, known := map[int][]netip.Addr{}, -1
	err := retryDump(func() error {
		msgs, err := n.sendOnce(unix.NETLINK_ROUTE, unix.RTM_GETNEIGH, unix.NLM_F_DUMP, unix.RTM_NEWNEIGH,
			&neighMessage{})
		before := known
		known = 0
		for _, m := range msgs {
			if index, a, is := permanentNeigh(m); is && !slices.Contains(all[index], a) {
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
	return all, wrapNotExist(err)
}

// permanentNeigh decodes an answer to RTM_GETNEIGH. ok reports whether the entry is permanent and has an IP address.
func permanentNeigh(m []byte) (index int, a netip.Addr, ok bool) {
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

// A neighMessage is a struct ndmsg of rtnetlink(7), as the header of a request.
type neighMessage unix.NdMsg

func (m *neighMessage) Len() int { return unix.SizeofNdMsg }

func (m *neighMessage) Serialize() []byte {
	return (*[unix.SizeofNdMsg]byte)(unsafe.Pointer(m))[:]
}
