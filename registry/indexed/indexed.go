// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package indexed is for the registry of a large node: hundreds of kilobytes, of which a process uses one entry and
// changes one. What a process does not use, it does not parse. What it does not change, it writes as the original text.
//
// - [Entries] are a map by address with an index before it, so that a process finds an entry without reading the
// others.
//   - [Addrs] is a list of addresses with an index.
//   - [Kept] are the values of a table with their texts.
//
// Its kinds are for [codec.ReadTrusted]: for text that neither a person nor another program has changed since we wrote
// it. By another reading, each is what it is to encoding/json, and the indexes are ignored.
package indexed
