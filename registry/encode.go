// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"bytes"
	"cmp"
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
	s, version, err := decode(b)
	if err != nil || version != schemaVersion {
		return nil, cmp.Or(checkVersion(b), err)
	}
	return s, s.check()
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

// decode reads the object field by field, because that is one look at each byte where
// json.Unmarshal into raw fields and then into ours would be two; this is what every
// ADD waits for.
func decode(b []byte) (s *State, version int, err error) {
	s = newState()
	s.unknown = map[string]raw{}
	ips := map[netip.Addr]free{}
	fields := map[string]any{
		"schema_version": &version, "ips": &ips, "leases": &s.Leases, "enis": &s.ENIs, "vpcs": &s.VPCs, "intents": &s.Intents,
		"gone": &s.Gone, "wishes": &s.Wishes, "warm": &s.Warm, "not_before": &s.NotBefore, "instance": &s.Instance,
	}
	d := json.NewDecoder(bytes.NewReader(b))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, 0, cmp.Or(err, errors.New("it is no object"))
	}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, 0, err
		}
		key := t.(string) // the decoder has seen to it
		if err := decodeField(d, key, fields[key], s.unknown); err != nil {
			return nil, 0, fmt.Errorf("%s: %w", key, err)
		}
	}
	if _, err := d.Token(); err != nil {
		return nil, 0, err
	}
	if d.More() {
		return nil, 0, errors.New("something follows the object")
	}
	for a, ip := range ips {
		s.Free[a] = ip.ReleasedOn
	}
	s.fill()
	return s, version, nil
}

// decodeField decodes a value into v, or keeps it as it is if nobody knows the key.
func decodeField(d *json.Decoder, key string, v any, unknown map[string]raw) error {
	if v != nil {
		return d.Decode(v)
	}
	var r raw
	err := d.Decode(&r)
	unknown[key] = r
	return err
}

// fill makes maps of those that were null.
func (s *State) fill() {
	s.Leases, s.ENIs, s.VPCs = orEmpty(s.Leases), orEmpty(s.ENIs), orEmpty(s.VPCs)
	s.Intents, s.Gone, s.Wishes = orEmpty(s.Intents), orEmpty(s.Gone), orEmpty(s.Wishes)
	s.Warm, s.NotBefore = orEmpty(s.Warm), orEmpty(s.NotBefore)
}

func orEmpty[K comparable, V any](m map[K]V) map[K]V {
	if m == nil {
		return map[K]V{}
	}
	return m
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
