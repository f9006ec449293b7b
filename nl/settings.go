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

// Settings have, by name, the values of the properties that a network card keeps when it moves to another namespace. A
// pod with CAP_NET_ADMIN can change all of them, and the next pod would get the changed settings. The settings of
// ethtool(8) are in the card itself. The other settings are in the link, and __dev_change_net_namespace does not change
// them.
//
// Settings leaves out the following properties. Addresses, routes, neighbours, queueing disciplines and their filters
// end with a move. The link's sysctls also end, and the kernel makes new sysctls. A [MovedLink] removes programs and
// alternative names. Some values can be changed only by sysfs (RPS, XPS, NAPI). For this, a pod needs a writable /sys,
// which only privileged pods have. The drivers for EC2 do not change a MAC address.
type Settings map[string]string

// The attributes of a link that [NS.PutBack] can set.
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
	typ, size int // size: of a number, in bytes; 0 if the value is not a number
}

// text returns the value as text, and parse reads this text.
func (a linkSetting) text(value []byte) string {
	if a.size == 0 {
		return hex.EncodeToString(value)
	}
	return decimal(number(value))
}

func (a linkSetting) parse(text string) ([]byte, error) {
	if a.size == 0 {
		return hex.DecodeString(text)
	}
	v, err := strconv.ParseUint(text, 10, 8*a.size)
	// the first byte is the low one: the kernels of EC2 are little-endian
	return binary.NativeEndian.AppendUint32(nil, uint32(v))[:a.size], err
}

// Attributes of linux/if_link.h that package unix lacks, since Linux 5.19 and 6.3.
const iflaGROMaxSize, iflaGSOIPv4MaxSize, iflaGROIPv4MaxSize = 58, 63, 64

// settableFlags are the flags that any process with CAP_NET_ADMIN may change (__dev_change_flags), and that a move
// keeps.
const settableFlags = unix.IFF_DEBUG | unix.IFF_NOTRAILERS | unix.IFF_NOARP | unix.IFF_DYNAMIC | unix.IFF_MULTICAST |
	unix.IFF_PORTSEL | unix.IFF_AUTOMEDIA | unix.IFF_PROMISC | unix.IFF_ALLMULTI

const flagsSetting = "flags"

// Settings reads the settings of a link. Settings leaves out settings that the kernel or the driver does not have.
func (n *NS) Settings(l Link) (Settings, error) {
	msg := linkMessage()
	msg.Index = int32(l.Index)
	msgs, err := n.request(unix.NETLINK_ROUTE, unix.RTM_GETLINK, 0, unix.RTM_NEWLINK, msg, skipStats())
	if err == nil && len(msgs) != 1 {
		err = absence{unix.ENODEV}
	}
	if err != nil {
		return nil, fmt.Errorf("read the settings of %s: %w", l.Name, err)
	}
	flags := nl.DeserializeIfInfomsg(msgs[0]).Flags & settableFlags
	s := Settings{flagsSetting: decimal(flags), "alias": ""} // the kernel does not list an empty alias
	for typ, value := range attrsOf(msgs[0][msg.Len():]) {
		for _, a := range linkSettings {
			if a.typ == typ {
				s[a.name] = a.text(value)
			}
		}
	}
	err = n.cardSettings(l, s)
	return s, err
}

// PutBack sets the settings of a link to the values in was. The error names the settings that the link does not take.
func (n *NS) PutBack(l Link, was Settings) error {
	var failed error
	for range 3 { // one setting may change another: channels change receive side scaling
		now, err := n.Settings(l)
		if err != nil {
			return err
		}
		differ := was.differ(now)
		if len(differ) == 0 {
			return nil
		}
		failed = nil
		for _, name := range differ {
			if err := n.putBack(l, name, was[name]); err != nil {
				failed = errors.Join(failed, fmt.Errorf("put back the %s of %s: %w", name, l.Name, err))
			}
		}
	}
	return errors.Join(failed, n.Kept(l, was))
}

// Kept returns an error that names the changed settings of a link. was has the settings before the change.
func (n *NS) Kept(l Link, was Settings) (err error) {
	now, err := n.Settings(l)
	if err != nil {
		return err
	}
	for _, name := range was.differ(now) {
		err = errors.Join(err, differs("the "+name+" of "+l.Name, now[name], was[name]))
	}
	return err
}

// differ lists the names of the settings that have another value in now. It ignores settings that are only in now.
func (was Settings) differ(now Settings) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(was)), func(name string) bool { return now[name] == was[name] })
}

// putBack sets one setting.
func (n *NS) putBack(l Link, name, text string) error {
	msg := linkMessage()
	msg.Index = int32(l.Index)
	if name == flagsSetting {
		flags, err := linkSetting{size: 4}.parse(text)
		if err != nil {
			return err
		}
		msg.Flags, msg.Change = number(flags), settableFlags
		return n.change(unix.RTM_SETLINK, 0, msg)
	}
	for _, a := range linkSettings {
		if a.name == name {
			value, err := a.parse(text)
			if err != nil {
				return err
			}
			return n.change(unix.RTM_SETLINK, 0, msg, attr(a.typ, value))
		}
	}
	value, err := hex.DecodeString(text)
	if err != nil {
		return err
	}
	return n.setCard(l, name, value)
}
