// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// schemaVersion is that of the original's file, whose two fields, schema_version
// and ips, we keep as they are: a node can be upgraded and rolled back with pods
// running. All else stands beside them, where the original does not look.
const schemaVersion = 1

type raw = json.RawMessage

// file is the layout on disk.
type file struct {
	SchemaVersion int                      `json:"schema_version"`
	IPs           map[netip.Addr]free      `json:"ips"`
	Leases        map[netip.Addr]Lease     `json:"leases"`
	ENIs          map[string]ENI           `json:"enis"`
	VPCs          map[string]VPC           `json:"vpcs"`
	Intents       map[string]Intent        `json:"intents,omitempty"`
	Gone          map[netip.Addr]time.Time `json:"gone,omitempty"`
	Wishes        map[string]time.Time     `json:"wishes,omitempty"`
	Warm          map[string]Warm          `json:"warm,omitempty"`
	NotBefore     map[string]time.Time     `json:"not_before,omitempty"`
	Instance      Instance                 `json:"instance,omitzero"`
}

type free struct {
	ReleasedOn time.Time `json:"released_on"` // the zero time: reusable at once
}

func newState() *State {
	return &State{
		Free:      map[netip.Addr]time.Time{},
		Leases:    map[netip.Addr]Lease{},
		ENIs:      map[string]ENI{},
		VPCs:      map[string]VPC{},
		Intents:   map[string]Intent{},
		Wishes:    map[string]time.Time{},
		Gone:      map[netip.Addr]time.Time{},
		Warm:      map[string]Warm{},
		NotBefore: map[string]time.Time{},
	}
}

// parse reads a file of this release, of an earlier one, or of the original.
func parse(b []byte) (*State, error) {
	var all map[string]raw
	if err := json.Unmarshal(b, &all); err != nil {
		return nil, err
	}
	var version int
	if err := take(all, "schema_version", &version); err != nil {
		return nil, err
	}
	// The version decides before all else: a later layout may not even decode.
	if version > schemaVersion {
		return nil, fmt.Errorf("%w: its schema_version is %d, this release knows %d: install the later release again, or move the file away",
			ErrVersion, version, schemaVersion)
	}
	if version < 1 {
		return nil, fmt.Errorf("schema_version is %d", version)
	}
	s, ips := newState(), map[netip.Addr]free{}
	err := errors.Join(
		take(all, "ips", &ips), take(all, "leases", &s.Leases), take(all, "enis", &s.ENIs), take(all, "vpcs", &s.VPCs),
		take(all, "intents", &s.Intents), take(all, "wishes", &s.Wishes), take(all, "gone", &s.Gone), take(all, "warm", &s.Warm),
		take(all, "not_before", &s.NotBefore), take(all, "instance", &s.Instance))
	if err != nil {
		return nil, err
	}
	for a, ip := range ips {
		s.Free[a] = ip.ReleasedOn
	}
	s.unknown = all
	return s, s.check()
}

// take decodes a field of an object and removes it from there: what is left was
// put in by a later release. A field that is null is as good as absent.
func take(object map[string]raw, field string, v any) error {
	b := object[field]
	delete(object, field)
	if len(b) == 0 || string(b) == "null" {
		return nil
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%s: %w", field, err)
	}
	return nil
}

// encode writes the layout on disk, a line of text, after it has checked what it writes.
func (s *State) encode() ([]byte, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	f := file{schemaVersion, make(map[netip.Addr]free, len(s.Free)), s.Leases, s.ENIs, s.VPCs, s.Intents, s.Gone, s.Wishes, s.Warm, s.NotBefore, s.Instance}
	for a, since := range s.Free {
		f.IPs[a] = free{since}
	}
	b, err := json.Marshal(f)
	if err != nil {
		return nil, err
	}
	return append(s.withUnknown(b), '\n'), nil
}

// withUnknown puts the fields of a later release into the object b.
func (s *State) withUnknown(b []byte) []byte {
	if len(s.unknown) == 0 {
		return b
	}
	more, err := json.Marshal(s.unknown)
	if err != nil {
		panic(err) // raw messages that were decoded
	}
	return append(append(bytes.TrimSuffix(b, []byte("}")), ','), more[1:]...)
}
