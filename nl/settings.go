// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Settings maps names of properties to values. A network card keeps these properties when it moves to another
// namespace. They are settings of ethtool(8), and properties of the link that the move does not change
// (__dev_change_net_namespace). A pod with CAP_NET_ADMIN can change them, and the next pod with this card would get the
// changed settings.
//
// A Settings does not contain:
//
//   - Addresses, routes, neighbours, queueing disciplines, filters and sysctls: the link loses them when it moves.
//   - Programs and alternative names: [MovedLink.Del] removes them.
//   - RPS, XPS and NAPI: a pod can change them only by a writable /sys, which only privileged pods have.
//   - The MAC address: the drivers for EC2 refuse to change it.
type Settings map[string]string

// linkSettings has the attributes of a link that [NS.PutBack] can set.
var linkSettings = [...]linkSetting{
	{"MTU", unix.IFLA_MTU, 4},
	{"txqueuelen", unix.IFLA_TXQLEN, 4},
	{"link mode", unix.IFLA_LINKMODE, 1},
	{"broadcast address", unix.IFLA_BROADCAST, 0},
	{"alias", unix.IFLA_IFALIAS, 0},
	{"proto_down", unix.IFLA_PROTO_DOWN, 1},
	{"gso_max_size", unix.IFLA_GSO_MAX_SIZE, 4},
	{"gso_max_segs", unix.IFLA_GSO_MAX_SEGS, 4},
	{"gro_max_size", iflaGROMaxSize, 4},
	{"gso_ipv4_max_size", iflaGSOIPv4MaxSize, 4},
	{"gro_ipv4_max_size", iflaGROIPv4MaxSize, 4},
}

type linkSetting struct {
	name      string
	typ, size int // size: the number of bytes if the value is a number, otherwise 0
}

// formatValue returns an attribute's value as text: a number in decimal, any other value in hexadecimal. parseValue
// decodes this text.
func (a linkSetting) formatValue(value []byte) string {
	if a.size == 0 {
		return hex.EncodeToString(value)
	}
	return decimal(nativeUint(value))
}

func (a linkSetting) parseValue(text string) ([]byte, error) {
	if a.size == 0 {
		return hex.DecodeString(text)
	}
	v, err := strconv.ParseUint(text, 10, 8*a.size)
	// the lowest byte comes first, because the kernels of EC2 are little-endian
	return binary.NativeEndian.AppendUint32(nil, uint32(v))[:a.size], err
}

// Attributes of linux/if_link.h that package unix does not have. Linux has iflaGROMaxSize since 5.19, and the other two
// since 6.3.
const iflaGROMaxSize, iflaGSOIPv4MaxSize, iflaGROIPv4MaxSize = 58, 63, 64

// settableFlags are the flags that a process with CAP_NET_ADMIN can change (__dev_change_flags), and that a link keeps
// when it moves to another namespace.
const settableFlags = unix.IFF_DEBUG | unix.IFF_NOTRAILERS | unix.IFF_NOARP | unix.IFF_DYNAMIC | unix.IFF_MULTICAST |
	unix.IFF_PORTSEL | unix.IFF_AUTOMEDIA | unix.IFF_PROMISC | unix.IFF_ALLMULTI

const flagsSetting = "flags"

// Settings returns the settings of a link. If the kernel or the driver lacks a setting, the result also lacks this
// setting.
func (n *NS) Settings(l Link) (Settings, error) {
	msg := linkMessage()
	msg.Index = int32(l.Index)
	msgs, err := n.sendRequest(unix.NETLINK_ROUTE, unix.RTM_GETLINK, 0, unix.RTM_NEWLINK, msg, skipStats())
	if err == nil && len(msgs) != 1 {
		err = notExistError{unix.ENODEV}
	}
	if err != nil {
		return nil, fmt.Errorf("read the settings of %s: %w", l.Name, err)
	}
	flags := nl.DeserializeIfInfomsg(msgs[0]).Flags & settableFlags
	s := Settings{flagsSetting: decimal(flags), "alias": ""} // the kernel does not list an empty alias
	for typ, value := range attrsOf(msgs[0][msg.Len():]) {
		for _, a := range linkSettings {
			if a.typ == typ {
				s[a.name] = a.formatValue(value)
			}
		}
	}
	err = n.cardSettings(l, s)
	return s, err
}

// PutBack sets the settings of a link to the saved values. The error names the settings that could not be set.
func (n *NS) PutBack(l Link, saved Settings) error {
	var failed error
	for range 3 { // several tries, because a change of the channels also changes receive side scaling
		now, err := n.Settings(l)
		if err != nil {
			return err
		}
		differ := saved.changedNames(now)
		if len(differ) == 0 {
			return nil
		}
		failed = nil
		for _, name := range differ {
			if err := n.putBackOne(l, name, saved[name]); err != nil {
				failed = errors.Join(failed, fmt.Errorf("put back the %s of %s: %w", name, l.Name, err))
			}
		}
	}
	return errors.Join(failed, n.Kept(l, saved))
}

// Kept returns an error that names the settings of a link that differ from the saved values.
func (n *NS) Kept(l Link, saved Settings) (err error) {
	now, err := n.Settings(l)
	if err != nil {
		return err
	}
	for _, name := range saved.changedNames(now) {
		err = errors.Join(err, mismatchError("the "+name+" of "+l.Name, now[name], saved[name]))
	}
	return err
}

// changedNames lists the names of the saved settings that have another value in the argument "current".
func (saved Settings) changedNames(current Settings) []string {
	names := slices.Sorted(maps.Keys(saved))
	return slices.DeleteFunc(names, func(name string) bool { return current[name] == saved[name] })
}

// putBackOne sets the setting with the given name. The text is the value as in a Settings.
func (n *NS) putBackOne(l Link, name, text string) error {
	msg := linkMessage()
	msg.Index = int32(l.Index)
	if name == flagsSetting {
		flags, err := linkSetting{size: 4}.parseValue(text)
		if err != nil {
			return err
		}
		msg.Flags, msg.Change = nativeUint(flags), settableFlags
		return n.applyChange(unix.RTM_SETLINK, 0, msg)
	}
	for _, a := range linkSettings {
		if a.name == name {
			value, err := a.parseValue(text)
			if err != nil {
				return err
			}
			return n.applyChange(unix.RTM_SETLINK, 0, msg, attr(a.typ, value))
		}
	}
	value, err := hex.DecodeString(text)
	if err != nil {
		return err
	}
	return n.setCard(l, name, value)
}
