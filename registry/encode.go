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

// schemaVersion is the schema version of the original plugin's file. This suite uses the same format for the two fields
// of that file, schema_version and ips. The original plugin ignores all other fields. So an operator can change from
// the original plugin to this suite and back while pods run.
const schemaVersion = 1

// fileBeginning is the beginning of each file with this schema version.
const fileBeginning = `{"schema_version":1,`

func newState() *State {
	return &State{
		ENIs:          map[string]ENI{},
		VPCs:          map[string]VPC{},
		Intents:       map[string]Intent{},
		Waiters:       map[string]Waiter{},
		GaveUp:        map[string]Waiter{},
		Failures:      map[string]Failure{},
		Owners:        map[netip.Addr]Pod{},
		Gone:          map[netip.Addr]time.Time{},
		Warm:          map[string]Warm{},
		NotBefore:     map[string]time.Time{},
		Refusals:      map[string]Refusal{},
		unknownFields: map[string]string{},
	}
}

// parseState parses a text that this release, an earlier release or the original plugin has written. The argument
// modTime is the file's modification time, or zero if the text is not from a file. If the text ends with this time, a
// process of this suite has written the text, so parseState trusts the indexes in the text.
func parseState(b []byte, modTime time.Time) (*State, error) {
	if !modTime.IsZero() && isSealed(b, modTime) {
		if s, version, err := decodeState(b, codec.ReadTrusted); err == nil && version == schemaVersion {
			s.isOurs = true
			return s, nil
		}
	}
	s, version, err := decodeState(b, codec.Read)
	if err != nil && bytes.ContainsAny(b, " \t\r\n") {
		s, version, err = decodeSpacedState(b)
	}
	if err != nil || version != schemaVersion {
		return nil, cmp.Or(checkVersion(b), err, fmt.Errorf("schema_version is %d", version))
	}
	// A person may have edited the key of a lease. [State.Held] finds a lease only if the lease's text begins with the
	// text that leaseTextStart returns. So the next write must encode the edited lease again.
	s.Leases.Renew(func(text string, l Lease) bool { return !strings.HasPrefix(text, l.Key.leaseTextStart()) })
	return s, s.checkInvariants()
}

func decodeState(b []byte, read func([]byte, func(*codec.Codec)) error) (s *State, version int, err error) {
	s = newState()
	s.fileSize = len(b)
	err = read(bytes.TrimSuffix(b, []byte("\n")), func(c *codec.Codec) {
		s.describe(c, &version)
	})
	return s, version, err
}

// decodeSpacedState decodes a file with white space. Only people write such files.
func decodeSpacedState(b []byte) (s *State, version int, err error) {
	var dense bytes.Buffer
	if err := json.Compact(&dense, b); err != nil {
		return nil, 0, err
	}
	return decodeState(dense.Bytes(), codec.Read)
}

// checkVersion explains why a file cannot be decoded. It reads only the field schema_version, because a later release
// may have changed every other field.
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

// encodeFile checks the state, and returns the text of the registry's file, in several parts. The last member of the
// text is modTime. The caller must set the file's modification time to this time. If this process has read fields of a
// later release, the text has these fields before the last member.
func (s *State) encodeFile(modTime time.Time) ([][]byte, error) {
	if err := s.checkInvariants(); err != nil {
		return nil, err
	}
	const (
		more = 1 << 10  // most changes add fewer bytes, so one allocation is enough
		most = 64 << 10 // maximum size of the buffer: WriteParts copies only a small part of a large file
	)
	version := schemaVersion
	parts, err := codec.WriteParts(make([]byte, 0, min(s.fileSize+more, most)), func(c *codec.Codec) {
		s.describe(c, &version)
	})
	last := &parts[len(parts)-1]
	*last = append(bytes.TrimSuffix(*last, []byte("}")), sealText(modTime)...)
	return parts, err
}
