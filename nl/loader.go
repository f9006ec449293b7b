// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/bpf"
)

// A loader loads the two programs of a Splice, or opens them if they are pinned. The two programs must use the same
// maps, because each program needs the entries that the other program makes. With different maps, a pod would get no
// answer from any Service. A loader gives both programs the same maps, even if another process has removed some of the
// pinned files.
type loader struct {
	maps       bpf.Maps
	mapIDs     string // the IDs of the maps, for the name of a program; "": the maps are not open yet
	openOrMake func(name string, open func() (int, error)) (int, error)
	pods       uint32 // the number of pods for which new maps have room
}

// unsharedPods is the number of pods for which a map has room if only one pod uses the map. Room for one pod would not
// be enough, because each CPU reserves some free entries for itself.
const unsharedPods = 8

func newLoader(share bool) *loader {
	l := &loader{maps: bpf.Maps{Kept: -1, Looped: -1}, openOrMake: makeUnpinned, pods: unsharedPods}
	if share { // all pods of the node use the same maps
		l.openOrMake, l.pods = openPinned, 128
	}
	return l
}

// loadProgram returns the file descriptor of a program. name is the program's name without the IDs of the maps, and
// makeCode returns the program's instructions.
func (l *loader) loadProgram(name string, makeCode func(bpf.Maps) []byte) (int, error) {
	if err := l.openMaps(); err != nil {
		return -1, err
	}
	return l.openOrMake(name+l.mapIDs, func() (int, error) { return loadBPF(makeCode(l.maps)) })
}

// openMaps opens or creates the maps, unless they are open.
func (l *loader) openMaps() (err error) {
	if l.mapIDs != "" {
		return nil
	}
	if l.maps.Kept, err = l.openMap("kept", 1); err != nil {
		return err
	}
	// the map "looped" is smaller, because a connection needs its entry only until the connection is answered
	if l.maps.Looped, err = l.openMap("looped", 4); err != nil {
		return err
	}
	l.mapIDs = ":" + decimal(mapID(l.maps.Kept)) + ":" + decimal(mapID(l.maps.Looped))
	return nil
}

// openMap opens the map with the given name, or creates it with room for l.pods / divisor pods. Each pod needs MapSets
// entries of 128 bytes (see src/memory.h). A pinned map outlives this release, and another release may need another
// layout. So the pinned file's name depends on the size of a key, the size of a value, and the number of sets.
func (l *loader) openMap(name string, divisor uint32) (int, error) {
	layout := name + " " + decimal(bpf.MapKeySize) + " " + decimal(bpf.MapValueSize) + " " + decimal(bpf.MapSets)
	// Releases with the same layout share the maps. So in the name, the hash of "" takes the place of a revision.
	const anyRelease = "cbf29ce484222325"
	return l.openOrMake(objectName(layout, anyRelease), func() (int, error) {
		if !canPin() { // the map cannot be pinned, so only this pod will use it
			l.pods = unsharedPods
		}
		return createMap(bpf.MapKeySize, bpf.MapValueSize, bpf.MapSets*l.pods/divisor)
	})
}

func (l *loader) close() {
	for _, fd := range []int{l.maps.Kept, l.maps.Looped} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}
