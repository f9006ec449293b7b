// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package bundle

import "encoding/json"

// A list loses items at its end if the bundle has too little room for the list.
type list[T any] struct{ items []T }

// MarshalJSON writes the items.
func (l *list[T]) MarshalJSON() ([]byte, error) { return json.Marshal(append([]T{}, l.items...)) }

func (l *list[T]) Cut() bool {
	l.items = l.items[:len(l.items)/2]
	return len(l.items) > 0
}

// A tail is a list that loses items at its beginning.
type tail[T any] struct{ items []T }

// MarshalJSON writes the items.
func (l *tail[T]) MarshalJSON() ([]byte, error) { return json.Marshal(append([]T{}, l.items...)) }

func (l *tail[T]) Cut() bool {
	l.items = l.items[(len(l.items)+1)/2:]
	return len(l.items) > 0
}
