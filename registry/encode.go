// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/codec"
)

// schemaVersion is that of the original's file, whose two fields, schema_version
// and ips, we keep as they are: a node can be upgraded and rolled back with pods
// running. All else stands beside them, where the original does not look.
const schemaVersion = 1

func newState() *State {
	return &State{
		ENIs:      map[string]ENI{},
		VPCs:      map[string]VPC{},
		Intents:   map[string]Intent{},
		Wishes:    map[string]Wish{},
		Failures:  map[string]Failure{},
		Gone:      map[netip.Addr]time.Time{},
		Warm:      map[string]Warm{},
		NotBefore: map[string]time.Time{},
		unknown:   map[string]string{},
	}
}

// parse reads a file of this release, of an earlier one, or of the original.
func parse(b []byte) (*State, error) {
	if sealed(b) {
		if s, version, err := decode(b, codec.ReadLate); err == nil && version == schemaVersion {
			return s, nil
		}
	}
	s, version, err := decode(b, codec.Read)
	if err != nil && bytes.ContainsAny(b, " \t\r\n") {
		s, version, err = decodeSpaced(b)
	}
	if err != nil || version != schemaVersion {
		return nil, cmp.Or(checkVersion(b), err, fmt.Errorf("schema_version is %d", version))
	}
	return s, s.check()
}

func decode(b []byte, read func([]byte, func(*codec.Codec)) error) (s *State, version int, err error) {
	s = newState()
	s.size = len(b)
	err = read(bytes.TrimSuffix(b, []byte("\n")), func(c *codec.Codec) { s.describe(c, &version) })
	return s, version, err
}

// decodeSpaced decodes what a person has edited.
func decodeSpaced(b []byte) (s *State, version int, err error) {
	var dense bytes.Buffer
	if err := json.Compact(&dense, b); err != nil {
		return nil, 0, err
	}
	return decode(dense.Bytes(), codec.Read)
}

// checkVersion decides what a file is that cannot be decoded: a later layout need not
// look like this one in anything but its version.
func checkVersion(b []byte) error {
	var f struct {
		SchemaVersion int `json:"schema_version"`
	}
	if err := json.Unmarshal(b, &f); err != nil {
		return err
	}
	if f.SchemaVersion > schemaVersion {
		return fmt.Errorf("%w: its schema_version is %d, this release knows %d: install the later release again, or move the file away",
			ErrVersion, f.SchemaVersion, schemaVersion)
	}
	if f.SchemaVersion < 1 {
		return fmt.Errorf("schema_version is %d", f.SchemaVersion)
	}
	return nil
}

// encode writes the layout on disk, a line of text, after it has checked what it
// writes. Fields of a later release come last but for the sum.
func (s *State) encode() ([]byte, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	const more = 1 << 10 // than it was: most changes add no more, and then it is allocated once
	version := schemaVersion
	b, err := codec.Write(make([]byte, 0, s.size+more), func(c *codec.Codec) { s.describe(c, &version) })
	b = bytes.TrimSuffix(b, []byte("}"))
	return append(b, seal(b)...), err
}
