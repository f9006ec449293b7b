// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"

	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
)

// maxAnswer is the maximum size of an answer in bytes. An answer has at most [pageSize] ENIs. If each of them has fifty
// addresses with DNS names, the answer has about 16 MiB.
const maxAnswer = 64 << 20

// maxRefusal is the maximum size of an error answer in bytes. EC2 needs much less: its error answer has one code and
// one message. A message may contain an encoded part of one or two kilobytes. The action sts:DecodeAuthorizationMessage
// decodes this part.
const maxRefusal = 256 << 10

// A checkedClient makes requests to EC2. It returns an error if an answer cannot be from EC2. Captive portals and
// proxies send web pages with status 200. Without this check, the SDK would accept an empty page, or a page that
// happens to be XML, and return an empty answer. An empty answer to DescribeNetworkInterfaces means "no such ENI". For
// some requests that change something, EC2's own answer is empty. So an empty answer to one of these requests means
// that EC2 has carried out the request.
//
// EC2's answer to an action is a complete XML document. The name of its root element is the action's name followed by
// "Response". If the root element contains an element "return" whose text is not "true", EC2 has not carried out the
// request (EC2 API reference, for example the response elements of DeleteNetworkInterface).
type checkedClient struct{ HTTPClient }

func (c checkedClient) Do(r *http.Request) (*http.Response, error) {
	resp, err := c.HTTPClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	done, most := resp.StatusCode/100 == 2, maxRefusal
	if done {
		most = maxAnswer
	}
	var read bytes.Buffer
	if _, err := read.ReadFrom(io.LimitReader(resp.Body, int64(most)+1)); err != nil {
		return nil, err
	}
	body := read.Bytes()
	if len(body) > most {
		return nil, invalidAnswer{fmt.Errorf("the answer, %s, is larger than %d KiB: %.200q", resp.Status,
			most>>10, body)}
	}
	if done {
		if err := checkAnswer(body, awsmiddleware.GetOperationName(r.Context())); err != nil {
			return nil, invalidAnswer{fmt.Errorf("%w: %.80q", err, body)}
		}
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return resp, nil
}

// An invalidAnswer is an error about an answer that cannot be from EC2.
type invalidAnswer struct{ error }

func (i invalidAnswer) Unwrap() error { return i.error }

// checkAnswer returns an error if the document cannot be EC2's answer to the action.
func checkAnswer(document []byte, action string) error {
	d := xml.NewDecoder(bytes.NewReader(document))
	roots, depth, inReturn := 0, 0, false
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) && roots == 1 {
			return nil // the decoder returns io.EOF only if all elements are closed
		}
		if err != nil {
			return fmt.Errorf("this is no answer of EC2: %w", err)
		}
		switch t := token.(type) {
		case xml.StartElement:
			if depth == 0 {
				roots++
				if t.Name.Local != action+"Response" || roots > 1 {
					return fmt.Errorf("this is no answer of EC2 to %s", action)
				}
			}
			depth++
			inReturn = depth == 2 && t.Name.Local == "return"
		case xml.EndElement:
			depth--
			inReturn = false
		case xml.CharData:
			if inReturn && string(bytes.TrimSpace(t)) != "true" {
				return fmt.Errorf("EC2 has not carried out the call: the field return is %.80q", t)
			}
		}
	}
}
