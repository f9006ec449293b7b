// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/bpf"
)

// A loader loads the programs of a Splice, or gets those that are kept with the same maps.
// If somebody has removed some of what is kept, two programs with maps of different age
// would not know of each other what they remember, and no service would answer.
type loader struct {
	maps    bpf.Maps
	which   string // the maps, in a program's name
	keep    func(name string, open func() (int, error)) (int, error)
	entries uint32 // of a map, each of a tenth of a kB
}

func newLoader(share bool) *loader {
	closed := bpf.Maps{Kept: -1, Looped: -1}
	if share { // with all pods of the node
		return &loader{maps: closed, keep: pinned, entries: 16384}
	}
	return &loader{maps: closed, keep: unpinned, entries: 1024}
}

// program returns the file of the program of a name.
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
	if l.maps.Kept, err = l.openMap("memory"); err != nil {
		return err
	}
	if l.maps.Looped, err = l.openMap("looped"); err != nil {
		return err
	}
	l.which = fmt.Sprintf(":%d:%d", mapID(l.maps.Kept), mapID(l.maps.Looped))
	return nil
}

// openMap opens a map by its name. Where it is kept it outlives this release, and so the
// name has to change when the keys do.
func (l *loader) openMap(name string) (int, error) {
	return l.keep(fingerprint(name, nil), func() (int, error) { return createMap(bpf.KeySize, l.entries) })
}

func (l *loader) close() {
	for _, fd := range []int{l.maps.Kept, l.maps.Looped} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}
