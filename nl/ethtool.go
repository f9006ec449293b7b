// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A cardSetting is a setting of ethtool(8), as a C structure of linux/ethtool.h. The structure begins with the command
// number, in four bytes. With getCommand, the kernel fills the rest. With setCommand, the kernel reads the rest.
type cardSetting struct {
	name                   string
	getCommand, setCommand uint32
	size                   int
	args                   []uint32 // the numbers that follow the command number in a request
}

// Commands of linux/ethtool.h for the settings that no cardSetting describes.
const (
	ethtoolGetRSS      = 0x46 // needs two requests: see readRSS
	ethtoolSetRSS      = 0x47
	ethtoolGetFeatures = 0x3a // uses a different structure than ethtoolSetFeatures: see readFeatures
	ethtoolSetFeatures = 0x3b
)

// cardSettings returns the settings that pods can change. A driver for EC2 may lack some of them. A setting with
// setCommand 0 cannot be restored.
func cardSettings() []cardSetting {
	const getHash, setHash, getTunable, setTunable, u32, u16 = 0x29, 0x2a, 0x48, 0x49, 3, 2
	all := []cardSetting{
		{"channels", 0x3c, 0x3d, 36, nil},
		{"rings", 0x10, 0x11, 36, nil},
		{"coalescing", 0x0e, 0x0f, 92, nil},
		{"pause frames", 0x12, 0x13, 16, nil},
		{"private flags", 0x27, 0x28, 8, nil},
		{"message level", 0x07, 0x08, 8, nil},
		{"rx-copybreak", getTunable, setTunable, 20, []uint32{1, u32, 4}},
		{"tx-copybreak", getTunable, setTunable, 20, []uint32{2, u32, 4}},
		{"tx-buf-size", getTunable, setTunable, 20, []uint32{4, u32, 4}},
		{"number of ntuple rules", 0x2e, 0, 192, nil},
	}
	for flow, name := range []string{1: "TCP over IPv4", 2: "UDP over IPv4", 5: "TCP over IPv6", 6: "UDP over IPv6",
		16: "IPv4", 17: "IPv6"} {
		if name != "" {
			all = append(all, cardSetting{"hash of " + name, getHash, setHash, 192, []uint32{uint32(flow)}})
		}
	}
	return all
}

const featuresSetting, rssSetting = "offloads", "receive side scaling"

// cardSettings adds the settings of a link's driver to s.
func (n *NS) cardSettings(l Link, s Settings) error {
	read := func(name string, value []byte, err error) error {
		switch {
		case err == nil:
			s[name] = hex.EncodeToString(value)
		case !lacksSetting(err):
			return fmt.Errorf("read the %s of %s: %w", name, l.Name, err)
		}
		return nil
	}
	var failed error
	for _, c := range cardSettings() {
		b := structOf(c.size, append([]uint32{c.getCommand}, c.args...)...)
		err := n.runEthtool(l, b)
		failed = errors.Join(failed, read(c.name, b[4:], err))
	}
	value, err := n.readFeatures(l)
	failed = errors.Join(failed, read(featuresSetting, value, err))
	value, err = n.readRSS(l)
	return errors.Join(failed, read(rssSetting, value, err))
}

// lacksSetting reports whether an error of runEthtool means that the driver does not have a setting. A driver that has
// the command, but not the setting, returns EINVAL.
func lacksSetting(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL)
}

// readFeatures returns the offloads of a link. The value has two bit masks for each group of 32 offloads. The first
// mask has the offloads that can be changed. The second mask has those of them that a program has requested.
func (n *NS) readFeatures(l Link) (value []byte, err error) {
	const header, block = 8, 16
	b := structOf(header+8*block, ethtoolGetFeatures, 8)
	if err := n.runEthtool(l, b); err != nil {
		return nil, err
	}
	for i := range min(binary.NativeEndian.Uint32(b[4:]), 8) {
		at := b[header+i*block:] // struct ethtool_get_features_block: available, requested
		available, requested := binary.NativeEndian.Uint32(at), binary.NativeEndian.Uint32(at[4:])
		value = binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(value, available),
			requested&available)
	}
	return value, nil
}

// readRSS returns the driver's settings of receive side scaling: the key of the hash, and the table that maps hashes to
// queues. The first request asks for the sizes of both.
func (n *NS) readRSS(l Link) ([]byte, error) {
	const header, indirAt, keyAt, most = 24, 8, 12, 1 << 12
	sizes := structOf(header, ethtoolGetRSS)
	if err := n.runEthtool(l, sizes); err != nil {
		return nil, err
	}
	indir, key := binary.NativeEndian.Uint32(sizes[indirAt:]), binary.NativeEndian.Uint32(sizes[keyAt:])
	if indir > most || key > most {
		return nil, fmt.Errorf("the driver has an indirection table of %d entries, and a key of %d bytes: want "+
			"at most %d entries, and at most %[3]d bytes", indir, key, most)
	}
	b := structOf(int(header+4*indir+key), ethtoolGetRSS, 0, indir, key)
	err := n.runEthtool(l, b)
	return b[4:], err
}

func (n *NS) setCard(l Link, name string, value []byte) error {
	switch name {
	case featuresSetting: // struct ethtool_set_features_block has the two masks that readFeatures returns
		return n.runEthtool(l, append(structOf(8, ethtoolSetFeatures, uint32(len(value)/8)), value...))
	case rssSetting:
		return n.runEthtool(l, append(structOf(4, ethtoolSetRSS), value...))
	}
	for _, c := range cardSettings() {
		if c.name == name && c.setCommand != 0 {
			return n.runEthtool(l, append(structOf(4, c.setCommand), value...))
		}
	}
	return fmt.Errorf("the kernel has no command that sets %s", name)
}

// structOf returns a C structure of size bytes that begins with the given numbers.
func structOf(size int, numbers ...uint32) []byte {
	b := make([]byte, 0, size)
	for _, v := range numbers {
		b = binary.NativeEndian.AppendUint32(b, v)
	}
	return append(b, make([]byte, size-len(b))...)
}

// runEthtool executes a command of ethtool(8) for a link. The ioctl accepts any socket, even a netlink socket, and
// looks for the link in the socket's namespace.
func (n *NS) runEthtool(l Link, command []byte) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	s, err := n.familySocket(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	request := struct { // struct ifreq
		name [unix.IFNAMSIZ]byte
		data *byte
		_    [16]byte
	}{data: &command[0]}
	copy(request.name[:unix.IFNAMSIZ-1], l.Name)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(s.fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
	runtime.KeepAlive(command)
	if errno != 0 {
		return errno
	}
	return nil
}
