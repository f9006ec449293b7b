// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package indexed stores the lists and tables of a large node's registry. Such a registry has hundreds of kilobytes,
// but most processes use and change only one entry. A process does not parse the entries that it does not use. It
// writes the original text of unchanged entries.
//
//   - [Entries] are a map from addresses to values. An index precedes the map in the text, so that a process can find
//     an entry and need not parse the others.
//   - [Addrs] describes a list of addresses that has an index.
//   - [Kept] keeps the values of a table together with their original texts.
//
// Only [codec.ReadTrusted] uses the indexes. ReadTrusted is for a text that a process of this suite has written, and
// that no person and no other program has changed since then. [codec.Read] ignores the indexes, and parses all values.
package indexed
