// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package bundle

import "encoding/json"

// A list loses items if the bundle has too little room for the whole list. If keepsEnd is true, it loses its first
// items, and otherwise its last items.
type list[T any] struct {
	items    []T
	keepsEnd bool
}

// MarshalJSON writes the items.
func (l *list[T]) MarshalJSON() ([]byte, error) { return json.Marshal(append([]T{}, l.items...)) }

func (l *list[T]) Cut() bool {
	half := len(l.items) / 2
	if l.keepsEnd {
		l.items = l.items[len(l.items)-half:]
	} else {
		l.items = l.items[:half]
	}
	return half > 0
}
