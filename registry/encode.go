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

// schemaVersion is the schema version of the original plugin's file. That file has two fields, schema_version and ips.
// This suite keeps both fields as they are, so that an operator can upgrade a node, and roll it back, while pods run.
// All other fields are new, and the original plugin ignores them.
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

// parse reads the text of a file of this release, of an earlier release, or of the original plugin. modified is the
// time of the file's last change, or zero for a text that is not from a file. If modified is zero, or if the text does
// not end with this time, any program may have written the text. Then parse does not trust the indexes in the text.
func parse(b []byte, modified time.Time) (*State, error) {
	if !modified.IsZero() && sealed(b, modified) {
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
	// After an edit by a person, the members of a lease may be in another order, or have escapes. Held would not find
	// such a lease in a file that this suite has written. So the lease must be written again.
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

// checkVersion explains why a file cannot be decoded. A later release may have changed every field except
// schema_version.
func checkVersion(b []byte) error {
	var f struct {
		SchemaVersion int `json:"schema_version"`
	}
	if err := json.Unmarshal(b, &f); err != nil {
		return err
	}
	if f.SchemaVersion > schemaVersion {
		return fmt.Errorf("%w: the file has schema_version %d, and this release knows versions up to %d. Install the "+
			"later release again, or move the file away",
			ErrVersion, f.SchemaVersion, schemaVersion)
	}
	if f.SchemaVersion < 1 {
		return fmt.Errorf("schema_version is %d", f.SchemaVersion)
	}
	return nil
}

// encode checks the state, and returns the text of a file that is modified at the time modified. The text is one line,
// in parts. Fields of a later release come last, before the member with the time.
func (s *State) encode(modified time.Time) ([][]byte, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	const (
		more = 1 << 10  // bytes that the text may grow: most changes add less, so one allocation is enough
		most = 64 << 10 // bytes at most: most text of a large file is not copied, see [codec.WriteParts]
	)
	version := schemaVersion
	parts, err := codec.WriteParts(make([]byte, 0, min(s.size+more, most)), func(c *codec.Codec) {
		s.describe(c, &version)
	})
	last := &parts[len(parts)-1]
	*last = append(bytes.TrimSuffix(*last, []byte("}")), seal(modified)...)
	return parts, err
}
