// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A FOU is a UDP port at which the kernel unpacks the packets of a [Tunnel] (ip-fou(8)). The port is open only at the
// address Local. When the namespace ends, the kernel closes the port.
type FOU struct {
	Local netip.Addr
	Port  uint16
}

func (f FOU) String() string {
	name := "ip fou add"
	if f.Local.Is6() {
		name = "ip -6 fou add"
	}
	return command(name).number("port", int(f.Port)).number("ipproto", int(f.proto())).option("local",
		f.Local.String()).String()
}

// proto returns the protocol number of the packets that the kernel unpacks: IPv6 if Local is an IPv6 address, otherwise
// IPv4.
func (f FOU) proto() uint8 {
	if f.Local.Is6() {
		return unix.IPPROTO_IPV6
	}
	return unix.IPPROTO_IPIP
}

// The commands, attributes and values of linux/fou.h.
const (
	fouAdd, fouDel, fouGet                  = 1, 2, 3
	fouPort, fouAF, fouProto, fouType       = 1, 2, 3, 4
	fouLocal4, fouLocal6                    = 6, 7
	fouDirect                               = 1 // the inner packet begins directly after the UDP header
	fouVersion                        uint8 = 1
)

// ErrNoFOU reports that the kernel does not have FOU, and could not load its module.
var ErrNoFOU = errors.New("this kernel has no foo over UDP (the module fou)")

func (f FOU) Add(n *NS) error {
	_, err := n.fou(fouAdd, unix.NLM_F_ACK, f.attrs(f.proto())...)
	if errors.Is(err, unix.EADDRINUSE) {
		if f.Check(n) == nil {
			return errSame
		}
		return fmt.Errorf("a program in the namespace uses UDP port %d: %w", f.Port, err)
	}
	return err
}

func (f FOU) Del(n *NS) error {
	_, err := n.fou(fouDel, unix.NLM_F_ACK, f.attrs(0)...)
	if errors.Is(err, ErrNoFOU) || errors.Is(err, unix.EINVAL) { // EINVAL: there is no such port
		return fs.ErrNotExist
	}
	return err
}

func (f FOU) Check(n *NS) error {
	ports, err := n.fou(fouGet, unix.NLM_F_DUMP)
	if err != nil {
		return err
	}
	for _, m := range ports {
		if f == parseFOU(m) {
			return nil
		}
	}
	return fmt.Errorf("there is no such port: %w", fs.ErrNotExist)
}

// attrs returns the attributes of a request about the port. With proto 0, it leaves out the protocol: a request that
// deletes the port must not have the protocol.
func (f FOU) attrs(proto uint8) []attribute {
	af, local := uint8(unix.AF_INET), fouLocal4
	if f.Local.Is6() {
		af, local = unix.AF_INET6, fouLocal6
	}
	attrs := []attribute{attr(fouPort, binary.BigEndian.AppendUint16(nil, f.Port)), attr(fouAF, []byte{af}),
		attrAddr(local, f.Local)}
	if proto != 0 {
		attrs = append(attrs, attr(fouProto, []byte{proto}), attr(fouType, []byte{fouDirect}))
	}
	return attrs
}

func parseFOU(m []byte) (f FOU) {
	if len(m) < nl.SizeofGenlmsg {
		return f
	}
	for typ, value := range attrsOf(m[nl.SizeofGenlmsg:]) {
		switch {
		case typ == fouPort && len(value) == 2:
			f.Port = binary.BigEndian.Uint16(value)
		case typ == fouLocal4, typ == fouLocal6:
			f.Local = addrFrom(value)
		}
	}
	return f
}

func (n *NS) fou(command uint8, flags int, attrs ...attribute) ([][]byte, error) {
	family, err := n.fouFamily()
	if err != nil {
		return nil, err
	}
	head := &nl.Genlmsg{Command: command, Version: fouVersion}
	return n.sendRequest(unix.NETLINK_GENERIC, family, flags, 0, head, attrs...)
}

func (n *NS) fouFamily() (int, error) {
	family, err := n.genericFamily("fou")
	if errors.Is(err, fs.ErrNotExist) {
		n.loadModule("fou")
		family, err = n.genericFamily("fou")
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = addMayNotLoad(ErrNoFOU) // not fs.ErrNotExist, which would mean that only the port is missing
	}
	return family, err
}

func (n *NS) genericFamily(name string) (int, error) {
	answers, err := n.sendRequest(unix.NETLINK_GENERIC, unix.GENL_ID_CTRL, 0, 0,
		&nl.Genlmsg{Command: unix.CTRL_CMD_GETFAMILY, Version: 1}, attrString(unix.CTRL_ATTR_FAMILY_NAME, name))
	if err != nil {
		return 0, err
	}
	for _, m := range answers {
		for typ, value := range attrsOf(m[min(nl.SizeofGenlmsg, len(m)):]) {
			if typ == unix.CTRL_ATTR_FAMILY_ID {
				return int(nativeUint(value)), nil
			}
		}
	}
	return 0, fmt.Errorf("the kernel reports no number for the generic netlink family %s", name)
}

// Supported returns [ErrNoFOU] if the kernel has FOU neither built in nor as a module.
func (FOU) Supported(n *NS) error {
	_, err := n.fouFamily()
	return err
}
