// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/codec"
)

// schemaVersion is the schema version of the original's file. We keep its two fields, schema_version and ips, as they
// are, so that a node can be upgraded and rolled back with pods running. All other fields are beside them, and the
// original ignores them.
const schemaVersion = 1

// beginning is how a file of this version begins.
const beginning = `{"schema_version":1,`

func newState() *State {
	return &State{
		ENIs:      map[string]ENI{},
		VPCs:      map[string]VPC{},
		Intents:   map[string]Intent{},
		Waiters:   map[string]Waiter{},
		GaveUp:    map[string]Waiter{},
		Failures:  map[string]Failure{},
		Owners:    map[netip.Addr]Pod{},
		Gone:      map[netip.Addr]time.Time{},
		Warm:      map[string]Warm{},
		NotBefore: map[string]time.Time{},
		Refusals:  map[string]Refusal{},
		unknown:   map[string]string{},
	}
}

// parse reads a file of this release, of an earlier one, or of the original. A text that is no file has the zero time.
// Then any program may have written its end, so parse does not believe its indexes.
func parse(b []byte, written time.Time) (*State, error) {
	if !written.IsZero() && sealed(b, written) {
		if s, version, err := decode(b, codec.ReadTrusted); err == nil && version == schemaVersion {
			s.ours = true
			s.upgrade()
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
	s.upgrade()
	// After an edit, the members of a lease may be in another order, or have escapes. Then Held would not find the
	// lease once the file is ours again.
	s.Leases.Renew(func(text string, l Lease) bool { return !strings.HasPrefix(text, l.Key.begin()) })
	return s, s.check()
}

func decode(b []byte, read func([]byte, func(*codec.Codec)) error) (s *State, version int, err error) {
	s = newState()
	s.size = len(b)
	err = read(bytes.TrimSuffix(b, []byte("\n")), func(c *codec.Codec) {
		s.describe(c, &version)
	})
	return s, version, err
}

// decodeSpaced decodes a file with white space, which a person has edited.
func decodeSpaced(b []byte) (s *State, version int, err error) {
	var dense bytes.Buffer
	if err := json.Compact(&dense, b); err != nil {
		return nil, 0, err
	}
	return decode(dense.Bytes(), codec.Read)
}

// checkVersion explains why a file cannot be decoded. A later layout may differ from this
// one in everything except its version.
func checkVersion(b []byte) error {
	var f struct {
		SchemaVersion int `json:"schema_version"`
	}
	if err := json.Unmarshal(b, &f); err != nil {
		return err
	}
	if f.SchemaVersion > schemaVersion {
		return fmt.Errorf("%w: its schema_version is %d, this release knows %d: install the later release again, or "+
			"move the file away",
			ErrVersion, f.SchemaVersion, schemaVersion)
	}
	if f.SchemaVersion < 1 {
		return fmt.Errorf("schema_version is %d", f.SchemaVersion)
	}
	return nil
}

// encode checks the state and returns the layout on disk, a line of text, in parts, for a file with that modification
// time. Fields of a later release come last, before that time.
func (s *State) encode(written time.Time) ([][]byte, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	const (
		more = 1 << 10  // than the last size: most changes add less, so one allocation is enough
		most = 64 << 10 // of a large file, most is cut in
	)
	version := schemaVersion
	parts, err := codec.WriteParts(make([]byte, 0, min(s.size+more, most)), func(c *codec.Codec) {
		s.describe(c, &version)
	})
	last := &parts[len(parts)-1]
	*last = append(bytes.TrimSuffix(*last, []byte("}")), seal(written)...)
	return parts, err
}
