// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package indexed stores the large lists and tables of a node's registry. The registry may have hundreds of kilobytes.
// So a process parses only the entries that it uses, and copies the text of unchanged entries.
//
//   - [Entries] are a map from addresses to values, with an index by which a process finds an entry.
//   - [Addrs] describes a list of addresses that has an index.
//   - [Kept] keeps the values of a table together with their original texts.
//
// Only [codec.ReadTrusted] uses the indexes. It is for a text that a process of this suite has written, and that no
// person and no other program has changed. [codec.Read] ignores the indexes, and parses all values.
package indexed
