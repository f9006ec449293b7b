// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/bpf"
)

// A loader loads the two programs of a Splice, or opens the pinned programs. It makes sure that both programs have the
// same maps, even if another process has removed some of the pinned files. If the programs had different maps, each
// program would miss the entries of the other program, and no Service would answer.
type loader struct {
	maps  bpf.Maps
	which string // identifies the maps, in a program's name
	keep  func(name string, open func() (int, error)) (int, error)
	pods  uint32 // the number of pods for which the maps have room
}

// ownPods is the number of pods for which there is room in maps that only one pod uses. The number is above 1, because
// each CPU keeps some free entries for itself.
const ownPods = 8

func newLoader(share bool) *loader {
	l := &loader{maps: bpf.Maps{Kept: -1, Looped: -1}, keep: unpinned, pods: ownPods}
	if share { // all pods of the node use the same maps
		l.keep, l.pods = pinned, 128
	}
	return l
}

// program returns the file descriptor of a program. name is the first part of its name, and code makes the program for
// the maps.
func (l *loader) program(name string, code func(bpf.Maps) []byte) (int, error) {
	if err := l.open(); err != nil {
		return -1, err
	}
	return l.keep(name+l.which, func() (int, error) { return loadBPF(code(l.maps)) })
}

// open opens the maps, if they are not open yet.
func (l *loader) open() (err error) {
	if l.which != "" {
		return nil
	}
	if l.maps.Kept, err = l.openMap("kept", 1); err != nil {
		return err
	}
	// The map looped may be smaller, because an entry is needed only until the connection is answered.
	if l.maps.Looped, err = l.openMap("looped", 4); err != nil {
		return err
	}
	l.which = ":" + decimal(mapID(l.maps.Kept)) + ":" + decimal(mapID(l.maps.Looped))
	return nil
}

// openMap opens a map by its name, or makes it. A new map has room for the sets of l.pods pods, divided by part. A set
// is an entry of the map (src/memory.h), and takes 128 bytes. A pinned map outlives this release, so its name must
// change with its layout.
func (l *loader) openMap(name string, part uint32) (int, error) {
	layout := name + " " + decimal(bpf.MapKeySize) + " " + decimal(bpf.MapValueSize) + " " + decimal(bpf.MapSets)
	const anyRelease = "cbf29ce484222325" // the hash of "", as in the first releases: all releases share the maps
	return l.keep(objectName(layout, anyRelease), func() (int, error) {
		if !canPin() { // no other process will find the map
			l.pods = ownPods
		}
		return createMap(bpf.MapKeySize, bpf.MapValueSize, bpf.MapSets*l.pods/part)
	})
}

func (l *loader) close() {
	for _, fd := range []int{l.maps.Kept, l.maps.Looped} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}
