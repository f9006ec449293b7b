// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package indexed stores the lists and tables of a large node's registry. Such a registry has hundreds of kilobytes,
// but a process uses one entry and changes one entry. A process does not parse the entries that it does not use. It
// writes unchanged entries as their original text.
//
//   - [Entries] are a map from addresses to values with an index before it, so that a process finds an entry without
//     reading the others.
//   - [Addrs] describes a list of addresses with an index.
//   - [Kept] has the values of a table with their texts.
//
// The indexes are for [codec.ReadTrusted]: for text that neither a person nor another program has changed since a
// process of this suite wrote it. [codec.Read] ignores the indexes, and parses all values.
package indexed
